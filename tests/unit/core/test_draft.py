"""A draft is a tree: whatever a drafter gets wrong is a DraftError, before anything is verified."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taslak.core.draft import EMPTY, ONE_HOT, ROOT, Draft, Partial
from taslak.errors import DraftError

FLAT = torch.full((1, 4), 0.25)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 12))
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(size):
        parent = draw(st.integers(-1, node - 1))
        used = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        tokens.append(draw(st.sampled_from([t for t in range(20) if t not in used])))
        parents.append(parent)
    return Draft(tuple(tokens), tuple(parents))


@given(trees())
def test_every_tree_is_a_draft_and_knows_its_shape(draft: Draft) -> None:
    draft.check(20)
    assert len(draft) == len(draft.tokens)
    assert draft.depth == max(draft.depths, default=0)
    assert draft.branch(ROOT) == []
    for node in range(len(draft)):
        assert draft.branch(node)[-1] == draft.tokens[node]
        assert len(draft.branch(node)) == draft.depths[node]
        assert node in draft.children(draft.parents[node])
    assert sorted(c for node in range(-1, len(draft)) for c in draft.children(node)) == list(
        range(len(draft))
    )


def test_children_keep_their_decision_order() -> None:
    draft = Draft((7, 3, 5, 1), (-1, -1, 0, -1))
    assert [draft.tokens[child] for child in draft.children(ROOT)] == [7, 3, 1]
    assert draft.branch(2) == [7, 5]


def test_the_empty_draft_is_legal() -> None:
    EMPTY.check(1)
    assert (len(EMPTY), EMPTY.depth, EMPTY.children(ROOT)) == (0, 0, [])


def test_a_chain_names_its_rows() -> None:
    plain = Draft.chain([3, 1, 2], confidence=[0.5, 0.25, 0.125])
    assert (plain.parents, plain.q_row, plain.depth) == ((-1, 0, 1), (), 3)
    assert plain.confidence == (0.5, 0.25, 0.125)
    drawn = Draft.chain([3, 1], FLAT.repeat(2, 1))
    assert drawn.q_row == (0, 1)
    assert Draft.chain([]).tokens == ()


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ((1, 2), (1, 0)),
        ((1,), (0,)),
        ((1, 2), (-1, 1)),
        ((1, 2), (-1, 2)),
        ((1, 2, 3), (-1, 2, 1)),
        ((1,), (-2,)),
    ],
    ids=["two-cycle", "own-parent", "own-parent-2", "future", "three-cycle", "below-root"],
)
def test_c38_parents_must_come_first(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match="parent"):
        Draft(tokens, parents)


@pytest.mark.parametrize(("tokens", "parents"), [((1, 1), (-1, -1)), ((5, 2, 3, 2), (-1, 0, 0, 0))])
def test_c38_siblings_must_differ(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match="repeats token"):
        Draft(tokens, parents)


def test_cousins_may_be_equal() -> None:
    Draft((1, 2, 1, 1), (-1, -1, 0, 1)).check(3)


@pytest.mark.parametrize(
    "broken",
    [
        {"parents": ()},
        {"parents": (-1, 0, 1)},
        {"q_row": (0,)},
        {"q_row": (0, 0, 0)},
        {"confidence": (0.5,)},
        {"confidence": ()},
    ],
)
def test_c38_lengths_must_agree(broken: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(DraftError, match="2 tokens"):
        Draft(**{"tokens": (1, 2), "parents": (-1, 0)} | broken)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [-1, 4, 2**40])
def test_c38_tokens_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(DraftError, match="outside the vocabulary of 4"):
        Draft((0, token), (-1, 0)).check(4)


@pytest.mark.parametrize("value", [math.nan, -0.1, math.inf, -math.inf])
def test_c38_impossible_probabilities_anywhere_in_q(value: float) -> None:
    q = torch.full((2, 4), 0.25)
    q[1, 3] = value
    with pytest.raises(DraftError, match="negative or non-finite"):
        Draft((0,), (-1,), q, (0,)).check(4)


@pytest.mark.parametrize("row", [1, 7, -2])
def test_c38_rows_that_q_has_not(row: int) -> None:
    with pytest.raises(DraftError, match=f"q row {row} of 1"):
        Draft((0,), (-1,), FLAT, (row,)).check(4)


@pytest.mark.parametrize("q_row", [(0,), (ONE_HOT,), ()], ids=["drawn", "one-hot", "unsaid"])
@pytest.mark.parametrize("width", [3, 5])
def test_c38_a_q_of_another_width_never_reaches_verification(width: int, q_row: tuple[int, ...]) -> None:
    with pytest.raises(DraftError, match=r"expected \[parents, 4\]"):
        Draft((0,), (-1,), torch.full((1, width), 1 / width), q_row).check(4)


def test_c38_a_flat_q() -> None:
    with pytest.raises(DraftError, match="expected"):
        Draft((0,), (-1,), FLAT[0], (0,)).check(4)


def test_c38_drawn_from_nothing() -> None:
    with pytest.raises(DraftError, match="carries no q"):
        Draft((0,), (-1,), None, (0,)).check(4)
    with pytest.raises(DraftError, match="q row 0 of 0"):
        Draft((0,), (-1,), torch.zeros(0, 4), (0,)).check(4)


def test_rule_3_a_token_its_q_cannot_draw_discards_the_draft() -> None:
    q = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    Draft((0, 1), (-1, -1), q, (0, 0)).check(4)
    with pytest.raises(DraftError, match="node 1 is token 2, which its q can't draw"):
        Draft((0, 2), (-1, -1), q, (0, 0)).check(4)
    Draft((0, 2), (-1, -1), q, (0, ONE_HOT)).check(4)  # chosen, not drawn


def test_the_smallest_probability_is_a_possible_one() -> None:
    q = torch.tensor([[1.0, 1e-45, 0.0, 0.0]])
    Draft((1,), (-1,), q, (0,)).check(4)


def test_partial_work_names_the_first_layer_of_each_row() -> None:
    assert Partial(layer=3, hidden=torch.zeros(3, 2), rows=2).starts(4) == (3, 3, 0, 0)
