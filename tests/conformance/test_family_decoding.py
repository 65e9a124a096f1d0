"""Greedy decoding of every family with speculation, past the sliding window: the ids of plain decoding."""

from __future__ import annotations

import pytest
import torch

from taslak.drafters.base import DrafterOptions, build
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from taslak.native.build import BUILT
from tests.support.decoding import GAMMAS, decode, plain, request
from tests.support.families import CASES, FAMILY_CASES, WINDOW, ours, tiny_transformers
from tests.support.scripted import flip, oracle

PROMPT = [1, 2, 3, 1, 2, 40, 7, 3]
TOKENS = 30
NATIVE = ("bfloat16", "int8") if BUILT else ()
SLIDING = ["mistral-window", "gemma2", "gemma3_text", "phi3-window", "olmo3"]
CHOICES = [(case, "exact") for case in SLIDING] + [(case, path) for case in FAMILY_CASES for path in NATIVE]
FASTEST = NATIVE[0] if BUILT else "exact"
assert len(PROMPT) < WINDOW < TOKENS


def model_of(case: str, path: str) -> Decoder:
    changes = {"hidden_size": 64, "intermediate_size": 96} if CASES[case].usual else {"n_embd": 64}
    config, weights = ours(tiny_transformers(case, **changes))
    if path == "exact":
        return Decoder(config, weights, exact=True)
    return Decoder(config, pack_weights(config, weights, path), cache_dtype=torch.bfloat16)


@pytest.mark.parametrize(("case", "path"), CHOICES)
def test_c15_rejections_past_the_window_change_nothing(case: str, path: str) -> None:
    """Drafts that are right to the end, right for two tokens and wrong at once, through every depth."""
    model = model_of(case, path)
    assert bool(model.config.windows) == (case in SLIDING)
    asked = request(PROMPT, max_tokens=TOKENS)
    free = plain(model, [asked])[0].ids
    text = [*PROMPT, *free]
    for gamma in GAMMAS:
        knowing, wrong = oracle([text]), flip([text], 0, 61)
        for drafter in (knowing, flip([text], 2, 61), wrong):
            answer = decode(model, drafter, [asked], gamma=gamma)[0]
            assert answer.ids == free
            if drafter is knowing:
                assert answer.counts.acceptance_rate == 1.0
            if drafter is wrong:
                assert answer.counts.acceptance_rate == 0.0


@pytest.mark.parametrize("case", SLIDING)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_c15_trees_past_the_window_change_nothing(case: str, gamma: int) -> None:
    """Of a draft model that mostly agrees, which slides as well; greedy, and sampled in the same batch."""
    model = model_of(case, FASTEST)
    config, weights = ours(tiny_transformers(case, hidden_size=64, intermediate_size=96))
    torch.manual_seed(1)
    near = Decoder(config, {name: w + 0.02 * torch.randn_like(w) for name, w in weights.items()})
    asked = [request(PROMPT, max_tokens=TOKENS), request(PROMPT[:2], max_tokens=20, temperature=0.9)]
    drafts = build("draft-model", model, DrafterOptions(draft=near, branch=3))
    answers = decode(model, drafts, asked, gamma=gamma, branch=3)
    assert [answer.ids for answer in answers] == [free.ids for free in plain(model, asked)]
    assert sum(answer.counts.accepted for answer in answers) > 0


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_methods_that_need_no_second_model_give_the_same_text(case: str) -> None:
    model = model_of(case, FASTEST)
    asked = request([*PROMPT, *PROMPT, *PROMPT], max_tokens=TOKENS)
    free = plain(model, [asked])[0].ids
    for method, options in (
        ("ngram", DrafterOptions()),
        ("suffix", DrafterOptions()),
        ("early-exit", DrafterOptions(exit_layer=1, branch=2)),
    ):
        answer = decode(model, build(method, model, options), [asked], gamma=4, branch=2)[0]
        assert answer.ids == free
        assert answer.counts.drafted > 0
