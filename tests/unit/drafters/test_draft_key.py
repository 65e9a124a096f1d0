"""Noise of drawn drafts: another in every step, so that nothing learnt from a draft can bias the next."""

from __future__ import annotations

import torch

from taslak.core.draft import Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Distribution, Sampling
from taslak.core.verify import rejection
from taslak.drafters.base import View

Q, P = torch.tensor([0.9, 0.1], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
RUNS = 4000


def view(seed: int, tokens: list[int], stream: Stream = Stream.DRAFT) -> View:
    return View(tokens, 1, Sampling(temperature=1.0), noise_key(seed), stream, exact_q=True)


def drawn(shown: View, key: int, depth: int) -> list[int]:
    q = Distribution.of_weights(Q)
    return [q.draw(key, shown.stream, shown.position + d) for d in range(depth)]


def share_of_zeros(fresh: bool) -> float:
    """A draft of two tokens, the first rejected; the second, which nobody looked at, says whether the next
    step drafts at all. How often the next step's token is 0: half the time, if all is right."""
    zeros = 0
    for seed in range(RUNS):
        first = view(seed, [0])
        _, unseen = drawn(first, first.draft_key if fresh else first.key, 2)
        second = view(seed, [0, 1])
        draft = Draft()
        if unseen == 0:
            tokens = drawn(second, second.draft_key if fresh else second.key, 1)
            draft = Draft.chain(tokens, q=Q.float()[None])
        decisions = rejection(draft, lambda _: Distribution.of_weights(P), second.key, second.position)
        zeros += next(decisions).token == 0
    return zeros / RUNS


def test_what_was_drawn_and_not_looked_at_biases_nothing() -> None:
    """With one key for all steps the share is 0.55: the second draw would be the first one again."""
    assert abs(share_of_zeros(fresh=True) - 0.5) < 0.03
    assert share_of_zeros(fresh=False) > 0.53


def test_coupled_drafters_share_the_targets_noise() -> None:
    shown = view(3, [1, 2, 3], Stream.TOKEN)
    assert shown.draft_key == shown.key
    assert view(3, [1, 2, 3]).draft_key == view(3, [4, 5, 6]).draft_key != view(3, [1, 2]).draft_key
