"""What hazards and costs say should come out: τ and the speed-up of a linear draft against its depth γ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taslak.core.counts import Counts

Cost = Callable[[float], float]
"""Seconds of a pass over so many rows, or of a draft of so many levels."""


def reach(counts: Counts) -> list[float]:
    """r_d of `expected_tau`: of the passes that got so far, those that had something drafted there."""
    before = [counts.passes, *counts.accepted_at]
    return [offered / max(came, 1) for offered, came in zip(counts.offered_at, before, strict=False)]


def expected_tau(hazards: Sequence[float], gamma: int, reach: Sequence[float] = ()) -> float:
    """Tokens a pass emits when γ are drafted (Leviathan et al. 2023, with a hazard for every depth):

        τ(γ) = 1 + Σ_{d=1..γ} Π_{i=1..d} r_i · a_i

    hazards: [D] a_1, a_2, …: P(depth i accepted | depth i − 1 accepted and depth i drafted)
    reach:   [D] r_1, r_2, …: P(depth i drafted | depth i − 1 accepted), 1 for a drafter that always drafts
    Past the end of either the last value goes on; without any hazard τ is 1. Answers that stop within a pass
    are not in it.
    """
    total, survives = 1.0, 1.0
    for depth in range(gamma):
        survives *= _at(hazards, depth, 0.0) * _at(reach, depth, 1.0)
        total += survives
    return total


def predicted_speedup(
    hazards: Sequence[float],
    gamma: int,
    passing: Cost,
    draft: Cost,
    *,
    reach: Sequence[float] = (),
    other: float = 0.0,
    draw: float = 0.0,
) -> float:
    """Plain decoding's seconds a token over those of drafting γ tokens in every pass, prefill apart:

        S(γ) = τ(γ) · (c(1) + o + t) / (r_1 · c(1 + γ) + (1 − r_1) · c(1) + d(γ) + o + τ(γ) · t)

    c = `passing`, seconds of a pass over so many rows; d = `draft`, seconds of drafting γ levels
    o = `other`, seconds of a step that are neither; t = `draw`, of them those of each token; r_1: how often
    anything is drafted at all
    """
    drafted = _at(reach, 0, 1.0)
    tau = expected_tau(hazards, gamma, reach)
    plain = passing(1) + other + draw
    step = drafted * passing(1 + gamma) + (1.0 - drafted) * passing(1) + draft(gamma) + other + tau * draw
    return tau * plain / step


def best_gamma(speedups: Sequence[float]) -> int:
    """The γ, from 1 on, of the largest of the speed-ups [γ]; 0 where none is above 1: don't draft."""
    best = max(speedups, default=1.0)
    return speedups.index(best) + 1 if best > 1.0 else 0


def _at(values: Sequence[float], depth: int, none: float) -> float:
    if not values:
        return none
    return values[min(depth, len(values) - 1)]
