"""Growing trees: their shapes, their budgets, and that what they propose keeps the target's distribution."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from taslak.core.draft import ROOT, Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Sampling
from taslak.core.verify import rejection
from taslak.drafters.base import Budget, View
from taslak.drafters.choice import Chooser, Wish
from taslak.drafters.tree import Frontier, Tree, grow, static_shape
from tests.unit.core.checks import EXACT, SEEDS, SIGNIFICANCE, goodness_of_fit
from tests.unit.core.drafting import Script
from tests.unit.core.enumeration import emitted_law, sampled_law
from tests.unit.core.reference import distance, plain_law

SCRIPT = Script(vocab=4, seed=3, likeness=0.0)


class Untied(Script):
    """No two logits are equal, so that a ranking is one."""

    def draft_logits(self, branch: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{self.seed} {branch}")
        return [rng.gauss(0.0, 1.5) for _ in range(self.vocab)]


class Drawing(Tree):
    """The mistake: a tree that re-ranks nodes it has drawn."""

    def wish(self, node: int) -> Wish:
        return replace(super().wish(node), drawn=True)


def drafted(
    script: Script,
    key: int = 0,
    *,
    budget: Budget,
    branch: int,
    dynamic: bool,
    exact_q: bool = True,
    kind: type[Tree] = Tree,
    sampling: Sampling | None = None,
) -> Draft:
    """What a tree over the script's draft logits comes to."""
    view = View(
        tokens=list(script.prompt),
        prompt_length=len(script.prompt),
        sampling=script.sampling if sampling is None else sampling,
        key=key,
        stream=Stream.DRAFT if exact_q else Stream.TOKEN,
        exact_q=exact_q,
    )
    tree = kind(view, budget, branch, dynamic)

    def expand(frontier: Frontier) -> tuple[Tensor, Sequence[int]]:
        rows = [script.draft_logits(tuple(tree.wish(node).branch)) for _, node in frontier]
        return torch.tensor(rows), range(len(rows))

    grow([tree], Chooser(script.vocab), expand)
    return tree.draft()


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("exact_q", [True, False], ids=["rejection", "coupled"])
@pytest.mark.parametrize("branch", [1, 2, 3, 8])
def test_a_tree_fills_its_budget_and_stays_inside(
    dynamic: bool, temperature: float, exact_q: bool, branch: int
) -> None:
    script = Script(vocab=9, seed=1)
    for depth, nodes in ((1, 1), (1, 5), (3, 2), (3, 7), (5, 20), (4, 64)):
        draft = drafted(
            script,
            noise_key(1),
            budget=Budget(depth, nodes),
            branch=branch,
            dynamic=dynamic,
            exact_q=exact_q,
            sampling=Sampling(temperature=temperature),
        )
        draft.check(script.vocab)
        assert draft.depth <= depth
        assert len(draft) <= nodes
        assert all(len(draft.children(node)) <= branch for node in range(ROOT, len(draft)))
        room = sum(branch**level for level in range(1, depth + 1))
        if not dynamic or branch == 1:
            assert len(draft) == min(nodes, room)
        else:
            assert len(draft) >= min(nodes, branch)
        assert draft.confidence is not None
        assert all(0.0 <= share <= 1.0 + 1e-6 for share in draft.confidence)


def test_a_static_shape_prefers_first_children() -> None:
    assert static_shape(4, 1, 9) == ((1,), (2,), (3,), (4,), ())
    children = static_shape(4, 3, 12)
    assert len(children) == 13
    assert len(children[0]) == 3
    assert len(children[children[0][0]]) >= len(children[children[0][1]])


def test_a_dynamic_tree_holds_the_most_confident_nodes() -> None:
    """Against all there are: the tree of every path, ranked by the product of its probabilities."""
    script = Untied(vocab=4, seed=5)
    sampling = Sampling()
    nodes = 6
    draft = drafted(script, budget=Budget(3, nodes), branch=4, dynamic=True, sampling=sampling)
    everything: dict[tuple[int, ...], float] = {}

    def walk(path: tuple[int, ...], joint: float) -> None:
        shares = torch.softmax(torch.tensor(script.draft_logits(path)), 0).tolist()
        for token, share in enumerate(shares):
            everything[(*path, token)] = joint * share
            if len(path) < 2:
                walk((*path, token), joint * share)

    walk((), 1.0)
    best = sorted(everything, key=lambda path: -everything[path])[:nodes]
    assert {tuple(draft.branch(node)) for node in range(len(draft))} == set(best)
    assert draft.confidence is not None
    for node, share in enumerate(draft.confidence):
        assert share == pytest.approx(everything[tuple(draft.branch(node))], rel=1e-5)


def test_stop_below_ends_where_confidence_is_low() -> None:
    script = Script(vocab=4, seed=5)
    for dynamic in (True, False):
        free = drafted(script, budget=Budget(4, 40), branch=3, dynamic=dynamic)
        short = drafted(script, budget=Budget(4, 40, stop_below=0.3), branch=3, dynamic=dynamic)
        assert 0 < len(short) < len(free)
        assert short.confidence is not None
        for node, parent in enumerate(short.parents):
            assert parent == ROOT or short.confidence[parent] >= 0.3, node


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_c36_a_dynamic_tree_has_the_targets_distribution_exactly(seed: int, nodes: int) -> None:
    script = replace(SCRIPT, seed=seed)
    draft = drafted(script, budget=Budget(2, nodes), branch=2, dynamic=True)
    assert len(draft) == nodes
    assert draft.q is None
    law = emitted_law(rejection, lambda choices: draft, script.p, script.next_token, 3)
    assert distance(law, plain_law(script.next_token, 3)) < EXACT


def test_c36_a_reranked_tree_of_drawn_nodes_is_caught() -> None:
    """The same tree with drawn children fails the test that the static tree of drawn children passes."""

    def fit(dynamic: bool, kind: type[Tree]) -> float:
        counts = sampled_law(
            rejection,
            lambda key: drafted(SCRIPT, key, budget=Budget(2, 3), branch=2, dynamic=dynamic, kind=kind),
            SCRIPT.p,
            2,
            SEEDS,
        )
        return goodness_of_fit(counts, plain_law(SCRIPT.next_token, 2))

    assert fit(dynamic=False, kind=Tree) > SIGNIFICANCE
    assert fit(dynamic=True, kind=Tree) > SIGNIFICANCE
    assert fit(dynamic=True, kind=Drawing) < SIGNIFICANCE


def test_rows_that_give_nothing_grow_nothing() -> None:
    view = View(tokens=[1], prompt_length=1, sampling=Sampling(), key=0)
    for sampling in (Sampling(), Sampling(temperature=1.0), Sampling(repetition_penalty=1.1)):
        wish = Wish(replace(view, sampling=sampling), (), 3, True)
        for row in (torch.full((1, 4), torch.nan), torch.full((1, 4), -torch.inf)):
            assert not Chooser(4).choose(row, [0], [wish])[0].tokens


def test_a_draft_vocabulary_is_mapped_and_obeys_the_settings() -> None:
    """The reduced rows give what rows with −inf elsewhere would."""
    ids = torch.tensor([1, 4, 5, 8])
    chooser, full = Chooser(10, ids), Chooser(10)
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    wide = torch.full((3, 10), -torch.inf).index_copy_(1, ids, rows)
    for sampling in (
        Sampling(),
        Sampling(temperature=0.8, top_p=0.9),
        Sampling(temperature=1.0, top_k=2),
        Sampling(repetition_penalty=1.5, temperature=0.7),
        Sampling(logit_bias={4: -100.0}),
        Sampling(banned=(1, 5)),
        Sampling(eos=(8,), min_tokens=3),
    ):
        for exact_q in (False, True):
            view = View([2, 4], 1, sampling, noise_key(3), Stream.DRAFT, exact_q)
            wishes = [Wish(view, branch, 3, drawn=True) for branch in ((), (1,), (5, 8))]
            narrow = chooser.choose(rows, range(3), wishes)
            for mine, other in zip(narrow, full.choose(wide, range(3), wishes), strict=True):
                assert list(mine.tokens) == [t for t in other.tokens if t in ids.tolist()][: len(mine.tokens)]
                assert list(mine.shares) == pytest.approx(list(other.shares)[: len(mine.shares)], abs=1e-6)
                assert (mine.q is None) == (other.q is None)
                if mine.q is not None and other.q is not None:
                    assert torch.allclose(mine.q, other.q)
