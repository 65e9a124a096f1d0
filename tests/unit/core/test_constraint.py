"""A constraint in the sampling pipeline: what it forbids is never drawn, whatever else is set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from taslak.core.draft import EMPTY, ROOT, Draft
from taslak.core.noise import Stream
from taslak.core.sampling import Sampling, distribution
from taslak.errors import SamplingError
from taslak.native import row_draw
from tests.support.constraints import States

V, END = 6, 5
CONSTRAINT = States(V, ({1: 1, 3: 1}, {2: 1, 4: 2}, {}), ends=(1, 2))
ROW = torch.tensor([9.0, 1.0, 2.0, 3.0, 0.5, 8.0])


def after(answer: list[int], row: torch.Tensor = ROW, kernel: bool = True, **options: Any) -> list[int]:
    """The support after a prompt of two tokens and this answer, the last of it on a branch."""
    sampling = Sampling(constraint=CONSTRAINT, **{"temperature": 1.0, "eos": (END,), **options})
    draw = row_draw(row) if kernel else None
    dist = distribution(row, [0, 0, *answer[:-1]], answer[-1:], 2, sampling, draw)
    drawn = [dist.draw(seed, Stream.TOKEN, 3) for seed in range(40)]
    assert set(drawn) <= set(dist.ids.tolist())
    return dist.ids.tolist()


@pytest.mark.parametrize("kernel", [True, False])
def test_only_what_it_allows_is_left(kernel: bool) -> None:
    assert after([], kernel=kernel) == [1, 3]
    assert after([3], kernel=kernel) == [2, 4, END], "the end too, where it may be"
    assert after([3, 2], kernel=kernel) == [2, 4, END]
    assert after([3, 4], kernel=kernel) == [END], "and nothing but it, where nothing else is"
    assert after([], temperature=0.0, kernel=kernel) == [3]
    assert after([], top_k=1, kernel=kernel) == [3], "cuts are made among what is allowed"


def test_shares_are_those_of_the_row_among_what_is_allowed() -> None:
    sampling = Sampling(constraint=CONSTRAINT, temperature=2.0, eos=(END,))
    p = distribution(ROW, [0, 0, 1], (), 2, sampling).probabilities(V)
    weights = [math.exp(float(ROW[i]) / 2.0) for i in (2, 4, END)]
    assert p[[2, 4, END]].tolist() == pytest.approx([w / sum(weights) for w in weights])


def test_it_is_stronger_than_biases() -> None:
    assert after([], logit_bias={0: 100.0}) == [1, 3], "a token it forbids isn't forced"
    assert after([], logit_bias={0: 100.0, 1: 100.0}) == [1]
    assert after([], logit_bias={3: -100.0}) == [1]
    assert after([], forced=(1,)) == [1]
    assert after([3], min_tokens=9) == [2, 4], "the end is held back as without it"
    for options in ({"banned": (1, 3)}, {"forced": (0,)}):
        with pytest.raises(SamplingError):
            after([], **options)


def test_where_it_leaves_nothing_the_request_fails() -> None:
    with pytest.raises(SamplingError, match="the constraint leaves none"):
        after([0])
    with pytest.raises(SamplingError, match="the constraint leaves none"):
        after([3, 4], eos=())


def test_an_end_id_that_is_text_comes_only_where_the_end_may() -> None:
    assert after([], eos=(3,)) == [1]
    assert after([1], eos=(0, 2)) == [0, 2, 4]


def test_a_nan_on_a_forbidden_token_is_not_hidden() -> None:
    row = ROW.clone()
    row[0] = math.nan
    with pytest.raises(SamplingError, match="nan"):
        after([], row)


def test_a_draft_without_what_is_not_admitted() -> None:
    #        ROOT
    #      3   0   1
    #     2 0     4
    #       4
    draft = Draft(
        tokens=(3, 0, 1, 2, 0, 4, 4),
        parents=(ROOT, ROOT, ROOT, 0, 0, 2, 4),
        confidence=(0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    )
    pruned = draft.pruned(CONSTRAINT.admits)
    assert pruned == Draft((3, 1, 2, 4), (ROOT, ROOT, 0, 1), confidence=(0.7, 0.5, 0.4, 0.2))
    assert draft.pruned(lambda _: True) is draft
    assert draft.pruned(lambda _: False).tokens == ()
    assert EMPTY.pruned(lambda _: False) is EMPTY
