"""Coupled verification: for any draft at all, the text is plain decoding's, token for token."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.core.draft import EMPTY, ROOT, Draft
from taslak.core.noise import Stream, noise_key, uniform_at
from taslak.core.sampling import Distribution, Sampling, distribution
from taslak.core.verify import Decision, coupled, rejection
from taslak.errors import SamplingError

from .reference import adjusted, reference
from .test_draft import trees

VOCAB = 20
LENGTH = 12

SETTINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.3),
    "hot": Sampling(temperature=4.0),
    "cuts": Sampling(temperature=1.0, top_k=6, top_p=0.9, min_p=0.02),
    "penalties": Sampling(
        temperature=0.8, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
    ),
    "greedy-penalties": Sampling(repetition_penalty=2.0, no_repeat_ngram=2),
    "no-repeat": Sampling(temperature=1.0, no_repeat_ngram=2),
    "bias": Sampling(temperature=1.0, logit_bias={0: -100.0, 5: 2.5}, banned=(7,)),
    "forced": Sampling(temperature=1.0, forced=(3, 1, 4), min_tokens=6, eos=(2,)),
}


class Model:
    """Logits are a pseudo-random function of the last two tokens, with repetition likely and ties common."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def row(self, context: list[int]) -> list[float]:
        rng = random.Random(f"{self.seed} {context[-2:]}")
        return [rng.choice([-math.inf, *(n / 4 for n in range(-6, 9))]) for _ in range(VOCAB - 1)] + [0.0]


def plain(model: Model, prompt: list[int], s: Sampling, key: int, length: int) -> list[int]:
    """One token after the other, in plain Python: no code of `core` but the uniforms."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + length:
        row = model.row(tokens)
        left, kept = adjusted(row, tokens, len(prompt), s), reference(row, tokens, len(prompt), s)
        t = 1.0 if s.greedy else s.temperature
        score = {
            i: left[i] / t - math.log(-math.log(max(uniform_at(key, Stream.TOKEN, len(tokens), i), 2.0**-54)))
            for i in kept
        }
        tokens.append(max(score, key=lambda i: score[i]))
    return tokens[len(prompt) :]


def speculative(
    model: Model, prompt: list[int], s: Sampling, key: int, length: int, draft_for: list[Draft]
) -> list[int]:
    """The walk of the engine: each pass sees logits for its path only, all other rows are NaN."""
    tokens = list(prompt)
    step = 0
    while len(tokens) < len(prompt) + length:
        draft = draft_for[step % len(draft_for)]
        step += 1
        start = len(tokens)
        logits = torch.full((1 + len(draft), VOCAB), math.nan)
        at: int = ROOT
        target = plain(model, prompt, s, key, length + 20)  # long enough for any path
        path = [ROOT]
        for token in target[start - len(prompt) :]:
            child = next((c for c in draft.children(at) if draft.tokens[c] == token), None)
            if child is None:
                break
            path.append(at := child)
        for node in path:
            logits[node + 1] = torch.tensor(model.row([*tokens[:start], *draft.branch(node)]))

        def p_at(node: int, logits=logits, draft=draft, start=start) -> Distribution:  # type: ignore[no-untyped-def]
            return distribution(logits[node + 1], tokens[:start], draft.branch(node), len(prompt), s)

        for decision in coupled(draft, p_at, key, start):
            tokens.append(decision.token)
        assert len(tokens) - start == len(path)  # the longest path that agrees, and the bonus
    return tokens[len(prompt) : len(prompt) + length]


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=12)
@given(drafts=st.lists(trees(), min_size=1, max_size=4), seed=st.integers(0, 2**63), choice=st.integers(0, 3))
def test_any_draft_leaves_the_text_as_it_is(name: str, drafts: list[Draft], seed: int, choice: int) -> None:
    key, model, prompt = noise_key(seed, choice), Model(seed), [4, 2]
    want = plain(model, prompt, SETTINGS[name], key, LENGTH)
    assert speculative(model, prompt, SETTINGS[name], key, LENGTH, [EMPTY]) == want
    assert speculative(model, prompt, SETTINGS[name], key, LENGTH, drafts) == want


def p_below(
    model: Model, draft: Draft, committed: list[int], prompt_length: int, s: Sampling, node: int
) -> Distribution:
    """The target's distribution after a node of the draft."""
    branch = draft.branch(node)
    return distribution(torch.tensor(model.row([*committed, *branch])), committed, branch, prompt_length, s)


def oracle(want: list[int], right: int, gamma: int, wide: bool) -> Draft:
    """A draft whose first `right` tokens are the target's own and whose others are wrong."""
    tokens, parents, parent = [], [], ROOT
    for depth, token in enumerate(want[:gamma]):
        good = depth < right
        for rival in ([(token + 1) % VOCAB, (token + 2) % VOCAB] if wide else []) + ([token] if good else []):
            tokens.append(rival)
            parents.append(parent)
        if not good and not wide:
            tokens.append((token + 1) % VOCAB)
            parents.append(parent)
        parent = len(tokens) - 1
    return Draft(tuple(tokens), tuple(parents))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("wide", [False, True], ids=["linear", "tree"])
@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
def test_oracle_anti_and_flip_drafts(name: str, wide: bool, gamma: int) -> None:
    s, key, model, prompt = SETTINGS[name], noise_key(1), Model(1), [4, 2]
    want = plain(model, prompt, s, key, 40)
    for right in sorted({0, 1, 3, gamma}):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + LENGTH:
            draft = oracle(want[len(tokens) - len(prompt) :], right, gamma, wide)

            p_at = partial(p_below, model, draft, list(tokens), len(prompt), s)
            decisions = list(coupled(draft, p_at, key, len(tokens)))
            assert sum(d.node is not None for d in decisions) == min(right, gamma)
            assert decisions[-1].node is None
            tokens += [d.token for d in decisions]
        assert tokens[len(prompt) :][:LENGTH] == want[:LENGTH]


def certain(token: int) -> Distribution:
    return Distribution(torch.tensor([token]), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("verifier", [coupled, rejection])
def test_c01_rows_past_where_the_caller_stops_are_never_asked_for(verifier) -> None:  # type: ignore[no-untyped-def]
    asked: list[int] = []

    def p_at(node: int) -> Distribution:
        asked.append(node)
        return certain(7)

    walk = verifier(Draft.chain([7] * 5), p_at, 1, 0)
    assert asked == []
    assert list(islice(walk, 3)) == [Decision(7, 0), Decision(7, 1), Decision(7, 2)]
    assert asked == [ROOT, 0, 1]
    assert list(walk) == [Decision(7, 3), Decision(7, 4), Decision(7, None)]


@pytest.mark.parametrize("verifier", [coupled, rejection])
def test_branches_not_taken_are_never_asked_for(verifier) -> None:  # type: ignore[no-untyped-def]
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 0, 1, 3))
    laws = {ROOT: certain(2), 1: certain(4), 3: certain(9)}
    decisions = list(verifier(draft, laws.__getitem__, 1, 0))
    assert decisions == [Decision(2, 1), Decision(4, 3), Decision(9, None)]


@pytest.mark.parametrize("verifier", [coupled, rejection])
def test_a_broken_visited_row_fails_after_what_came_before_it(verifier) -> None:  # type: ignore[no-untyped-def]
    logits = torch.zeros(3, 4)
    logits[0, 2] = 50.0
    logits[1, 1] = math.nan
    draft = Draft.chain([2, 0])
    walk = verifier(
        draft, lambda node: distribution(logits[node + 1], [0], draft.branch(node), 1, Sampling()), 1, 1
    )
    assert next(walk) == Decision(2, 0)
    with pytest.raises(SamplingError):
        next(walk)


def test_sharing_the_noise_makes_draft_and_target_agree() -> None:
    """A drafter with the target's own distribution, drawing from stream TOKEN, is always right."""
    p = Distribution(torch.arange(10), torch.zeros(10, dtype=torch.float64))
    for seed in range(50):
        key = noise_key(seed)
        same = Draft.chain([p.draw(key, Stream.TOKEN, position) for position in range(5, 9)])
        assert [d.node for d in coupled(same, lambda node: p, key, 5)] == [0, 1, 2, 3, None]
    apart = Draft.chain([p.draw(noise_key(0), Stream.DRAFT, position) for position in range(40)])
    assert len(list(coupled(apart, lambda node: p, noise_key(0), 0))) < 10
