"""Where two answers part, and whether rounding explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from taslak.cli.rendering import verdict
from taslak.engine.compare import Comparison, first_difference
from taslak.engine.sequence import Answer, Request
from taslak.models.decoder import Decoder
from tests.support.decoding import plain, request
from tests.support.tiny import tiny_model

PROMPT = [1, 2, 3, 1, 2]


def parted(answer: Answer, other: int) -> Answer:
    return replace(answer, ids=(other, *answer.ids[1:]))


def ranked(model: Decoder, r: Request, k: int = 3) -> list[int]:
    """The k best tokens of the first position by what they would have been drawn by."""
    found: list[int] = []
    for _ in range(k):
        banned = replace(r, sampling=replace(r.sampling, banned=(*r.sampling.banned, *found)))
        found.append(plain(model, [banned])[0].ids[0])
    return found


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"repetition_penalty": 1.3}], ids=str)
def test_the_margin_is_between_the_two_that_differ(options: dict[str, float]) -> None:
    """The third best beside the best is no near-tie even where the first two are."""
    model = tiny_model(1)
    r = request(PROMPT, **options)
    best, second, third = ranked(model, r)
    answer = plain(model, [r])[0]
    by_second = first_difference(model, r, answer, parted(answer, second))
    by_third = first_difference(model, r, answer, parted(answer, third))
    assert by_second is not None
    assert by_third is not None
    assert 0 < by_second.margins[0] < by_third.margins[0]
    assert by_second.margins[0] == by_second.margins[1], "the model is width-invariant"
    assert not by_third.near_tie
    assert (by_second.plain, by_second.speculative) == (best, second)


def test_a_banned_token_is_infinitely_far() -> None:
    model = tiny_model(1)
    free = plain(model, [request(PROMPT)])[0].ids[0]
    r = request(PROMPT, banned=(free,))
    answer = plain(model, [r])[0]
    difference = first_difference(model, r, answer, parted(answer, free))
    assert difference is not None
    assert difference.margins[0] == float("inf")
    assert not difference.near_tie


def test_min_tokens_holds_the_end_back_here_too() -> None:
    model = tiny_model(1)
    free = plain(model, [request(PROMPT)])[0].ids[0]
    r = request(PROMPT, eos=(free,), min_tokens=3)
    answer = plain(model, [r])[0]
    difference = first_difference(model, r, answer, parted(answer, free))
    assert difference is not None
    assert not difference.near_tie


def test_bfloat16_differences_of_the_quick_path_are_near_ties() -> None:
    """Rounding there is a thousand times coarser, and is not called a fault."""
    from taslak.drafters.base import DrafterOptions, build
    from tests.support.decoding import decode

    found = 0
    for seed in range(12):
        model = tiny_model(seed, exact=False, dtype=torch.bfloat16, scale=0.12)
        r = request([1, 2, 3, 4] * 4, max_tokens=60)
        a = plain(model, [r])[0]
        b = decode(model, build("ngram", model, DrafterOptions()), [r], gamma=8)[0]
        difference = first_difference(model, r, a, b)
        if difference is not None:
            found += 1
            assert difference.near_tie, difference
    assert found, "no difference met: nothing was tested"


def test_the_verdict_says_which() -> None:
    model = tiny_model(1)
    r = request(PROMPT)
    answer = plain(model, [r])[0]
    far = parted(answer, ranked(model, r)[2])
    difference = first_difference(model, r, answer, far)

    def told(comparison: Comparison) -> str:
        return verdict(comparison)

    same = Comparison(answer, answer, None, "ngram", 4, "coupled", "float32")
    assert told(same) == "identical"
    assert "please report" in told(replace(same, speculative=far, difference=difference))
    assert difference is not None
    tie = replace(difference, margins=(2e-4, 3e-4))
    assert "a near-tie" in told(replace(same, speculative=far, difference=tie))
    assert "keeps the distribution" in told(replace(same, speculative=far, verify="rejection"))


def test_a_failed_answer_has_no_speedup() -> None:
    model = tiny_model(1)
    answer = plain(model, [request(PROMPT)])[0]
    failed = replace(answer, ids=(), accepted=(), error="nothing to choose", finish_reason="error")
    comparison = Comparison(answer, failed, None, "ngram", 4, "coupled", "float32")
    assert comparison.speedup is None
    assert comparison.error == "nothing to choose"
    assert comparison.as_json()["speculative"]["error"] == "nothing to choose"
