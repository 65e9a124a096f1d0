"""Every registered drafter, in every mode: registering a method is enough to be tested here."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare

from taslak import native
from taslak.control.controller import Controller
from taslak.control.costs import Costs, PassCost
from taslak.drafters.base import REGISTRY, DrafterOptions, build
from taslak.engine.sequence import Answer
from taslak.models.decoder import Decoder
from taslak.models.native_ops import pack_weights
from taslak.models.target import chain_rows
from tests.support.decoding import GAMMAS, cache_of, decode, plain, request
from tests.support.heads import head_for
from tests.support.registry import METHODS, MODES, SEVERAL, TARGET, drafter, drafters
from tests.support.tiny import near_model, random_weights, tiny_config, tiny_model

PROMPTS = ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [7], [5, 6, 5, 6, 5, 6, 5], list(range(40)) * 2)
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.05}


@pytest.mark.parametrize("temperature", ["greedy", "sampled"])
@pytest.mark.parametrize(("name", "branch", "tree"), MODES + SEVERAL)
def test_coupled_text_is_plain_text(name: str, branch: int, tree: str, temperature: str) -> None:
    options = SAMPLED if temperature == "sampled" else {}
    requests = [request(prompt, **options) for prompt in PROMPTS]
    expected = plain(TARGET, requests)
    for gamma in GAMMAS:
        got = decode(TARGET, drafters(name, branch, tree=tree), requests, gamma=gamma, branch=branch)
        assert [a.ids for a in got] == [a.ids for a in expected], f"γ {gamma}"
        assert [a.text for a in got] == [a.text for a in expected]
        for answer in got:
            assert answer.dropped == 0
            assert answer.counts.emitted == len(answer.ids)


@pytest.mark.parametrize(("name", "branch", "tree"), MODES + SEVERAL)
def test_under_control_coupled_text_is_plain_text(name: str, branch: int, tree: str) -> None:
    """Whatever the controller decides, with the costs this machine happens to have."""
    requests = [request(p, temperature=t, seed=1) for p, t in zip(PROMPTS, (0.0, 0.9, 0.0, 0.9), strict=True)]
    expected = plain(TARGET, requests)
    for step in (1.0, 1e-6):  # drafting is dear, and next to nothing
        policy = Controller(Costs(PassCost([1, 40], [1e-3, 1e-3 + step])), branch=branch)
        got = decode(TARGET, drafters(name, branch, tree=tree), requests, policy=policy)
        assert [a.ids for a in got] == [a.ids for a in expected]
        assert all(a.dropped == 0 for a in got)
    assert any(a.counts.drafted for a in got)


@pytest.mark.parametrize(("name", "branch", "tree"), MODES)
def test_rejection_at_temperature_zero_is_greedy(name: str, branch: int, tree: str) -> None:
    requests = [request(prompt, verify="rejection") for prompt in PROMPTS]
    expected = plain(TARGET, requests)
    got = decode(TARGET, drafter(name, branch, tree=tree), requests, branch=branch)
    assert [a.ids for a in got] == [a.ids for a in expected]


# -- rejection: the law of the first tokens, counted against the target's own, enumerated -------------

SMALL = {"vocab_size": 5, "layers": 2}
LAW_TARGET = tiny_model(2, exact=False, **SMALL)  # type: ignore[arg-type]
LAW_DRAFT = near_model(2, noise=0.4, exact=False, **SMALL)
LAW_PROMPT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
LAW_SETTINGS = {"temperature": 1.3, "top_k": 4}
LAW_LENGTH = 3
LAW_RUNS = 4000


def enumerated_law() -> dict[tuple[int, ...], float]:
    """P(first three tokens) from the target's logits; softmax and top-k written out anew."""

    def next_token(context: list[int]) -> list[float]:
        cache = LAW_TARGET.allocate(64)
        logits = LAW_TARGET.forward([chain_rows(cache, context, 1)]).logits[0].double()
        cache.release()
        cut = logits.sort(descending=True).values[3]
        return torch.softmax(torch.where(logits >= cut, logits / 1.3, -torch.inf), dim=0).tolist()

    law: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(5), repeat=LAW_LENGTH):
        p = 1.0
        for i, token in enumerate(path):
            p *= next_token([*LAW_PROMPT, *path[:i]])[token]
        law[path] = p
    return law


LAW: dict[tuple[int, ...], float] = {}


def fits_the_law(answers: list[Answer]) -> float:
    """p-value of the answers under the target's law."""
    if not LAW:
        LAW.update(enumerated_law())
    counts = dict.fromkeys(LAW, 0)
    for answer in answers:
        counts[answer.ids] += 1
    if any(counts[path] for path, p in LAW.items() if p == 0.0):
        return 0.0
    rare = [path for path, p in LAW.items() if 0 < p * len(answers) < 5]
    usual = [path for path, p in LAW.items() if p * len(answers) >= 5]
    observed = [counts[path] for path in usual] + [sum(counts[path] for path in rare)]
    expected = [LAW[path] * len(answers) for path in usual] + [sum(LAW[p] for p in rare) * len(answers)]
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
        scale = sum(observed) / sum(expected)
        expected = [e * scale for e in expected]
    return float(chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize(("name", "branch", "tree"), MODES + SEVERAL)
def test_rejection_has_the_targets_distribution(name: str, branch: int, tree: str) -> None:
    requests = [
        request(LAW_PROMPT, **LAW_SETTINGS, verify="rejection", max_tokens=LAW_LENGTH, choice=choice)
        for choice in range(LAW_RUNS)
    ]
    answers = decode(
        LAW_TARGET, drafters(name, branch, LAW_TARGET, LAW_DRAFT, tree), requests, gamma=4, branch=branch
    )
    assert sum(a.counts.accepted for a in answers) > LAW_RUNS / 5, "nothing was accepted: nothing was tested"
    assert sum(a.dropped for a in answers) == 0
    assert fits_the_law(answers) > 1e-4


def test_rejection_has_the_targets_distribution_under_control() -> None:
    requests = [
        request(LAW_PROMPT, **LAW_SETTINGS, verify="rejection", max_tokens=LAW_LENGTH, choice=choice)
        for choice in range(LAW_RUNS)
    ]
    cheap = Controller(Costs(PassCost([1, 200], [1e-3, 1e-3])))
    answers = decode(LAW_TARGET, drafters("draft-model", 1, LAW_TARGET, LAW_DRAFT), requests, policy=cheap)
    assert sum(a.counts.accepted for a in answers) > LAW_RUNS / 5
    assert fits_the_law(answers) > 1e-4


def test_the_law_catches_a_wrong_distribution() -> None:
    """The check above fails for answers of the draft model alone, and for a slightly other temperature."""
    for target, temperature in ((LAW_DRAFT, 1.3), (LAW_TARGET, 1.0)):
        requests = [
            request(LAW_PROMPT, temperature=temperature, top_k=4, max_tokens=LAW_LENGTH, choice=choice)
            for choice in range(LAW_RUNS)
        ]
        assert fits_the_law(decode(target, None, requests)) < 1e-6


# -- state: batches, interruptions, memory ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", [name for name in METHODS if REGISTRY[name].needs_head])
def test_heads_beside_native_targets(name: str, kind: str) -> None:
    """Packed as the target is, of a reduced vocabulary: the text is plain text, and no draft is dropped."""
    if not native.available():
        pytest.skip("no native kernels here")
    config = tiny_config(inner_size=64)
    target = Decoder(config, pack_weights(config, random_weights(config, 1), kind))
    head = head_for(name, target, draft_ids=None if name == "early-exit" else list(range(0, 61, 2)))
    warmth = (0.0, 0.9, 0.0, 0.9)
    requests = [request(p, temperature=t, seed=2) for p, t in zip(PROMPTS, warmth, strict=True)]
    expected = plain(target, requests)
    for branch, tree in ((1, "static"), (3, "static"), (3, "dynamic")):
        method = build(name, target, DrafterOptions(head=head, branch=branch, tree=tree))
        got = decode(target, method, requests, gamma=4, branch=branch)
        assert [a.ids for a in got] == [a.ids for a in expected]
        assert all(a.dropped == 0 for a in got)
        assert any(a.counts.drafted for a in got)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_equals_runs_alone(name: str) -> None:
    requests = [request(p, temperature=s * 0.4, seed=s) for s, p in enumerate(PROMPTS)]
    alone = [decode(TARGET, drafter(name), [r])[0] for r in requests]
    together = decode(TARGET, drafter(name), requests)
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        assert one.counts == other.counts, "a neighbour changed what was drafted"


@pytest.mark.parametrize("name", METHODS)
def test_c37_a_drafter_that_sat_out_is_right_at_once(name: str) -> None:
    """Text it has not seen appears, then some of it disappears: it drafts as a fresh one would."""
    from taslak.core.noise import noise_key
    from taslak.core.sampling import Sampling
    from taslak.drafters.base import Budget, View

    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 1, 2]
    old = drafter(name)
    ways = ("slem", "tli") if name == "cross-vocab" else (name,)  # which, it learns from the text
    view = View(tokens=[], prompt_length=3, sampling=Sampling(), key=noise_key(0))
    for length in (7, 8, 15, 17, 12, 4, 17, 9):
        view.tokens[:] = text[:length]
        if length == 12:
            view.tokens[10:] = [30, 31]  # not a prefix of what it saw: other text at the end
        view.cache = cache_of(TARGET, view.tokens)
        budget = Budget(depth=5, nodes=5)
        expected = []
        for way in ways:
            fresh = replace(view, tokens=list(view.tokens), cache=cache_of(TARGET, view.tokens), state=None)
            expected.append(drafter(way).propose([fresh], [budget])[0].tokens)
        assert old.propose([view], [budget])[0].tokens in expected


@pytest.mark.parametrize("name", METHODS)
def test_finished_sequences_leave_nothing_behind(name: str) -> None:
    target, draft = tiny_model(1), near_model(1)
    method = drafter(name, 1, target, draft)
    decode(target, method, [request(p) for p in PROMPTS])
    assert target.pool.free_pages == target.pool.pages
    assert draft.pool.free_pages == draft.pool.pages
    size = target.pool.pages, draft.pool.pages
    decode(target, method, [request(p) for p in PROMPTS])
    assert (target.pool.pages, draft.pool.pages) == size, "the pool grew for the same work"
