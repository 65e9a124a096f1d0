"""Requests of late, or of long ago: their counts added up, and what they were like.

Sums are kept as records come and go, so that looking at them is quick however many there are.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from taslak.control.record import Record, context_band, temperature_band

if TYPE_CHECKING:
    from typing_extensions import Self

SPREAD, SPREAD_WEIGHT = 0.1, 8.0
"""Standard deviation of the acceptance between requests that is supposed at first, worth so many requests."""

SHIFT = 0.3
"""Share of the drafts that must have moved from one kind of request to another to be a likely cause."""

FACTOR = 2.0
"""The same for a mean: so many times larger or smaller."""

_TRAITS = ("temperature", "context length", "task", "verify rule")


class Window:
    """Records in the order they came.

    offered, accepted:  [depth] added up over the records, as in `Counts`
    drafted, kept:      drafted depth, and accepted tokens
    """

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.offered: list[int] = []
        self.accepted: list[int] = []
        self.drafted = self.kept = self.tokens = 0
        self._trials = 0  # all offered: a draft of γ tokens whose first is refused is one trial
        self._trials_squared = self._kept_squared = self._kept_trials = 0  # sums over requests, as are these:
        self._drafted_squared = self._kept_drafted = 0
        self._traits: dict[str, Counter[str]] = {trait: Counter() for trait in _TRAITS}

    def __len__(self) -> int:
        return len(self.records)

    def push(self, record: Record) -> None:
        """Take in the newest."""
        self.records.append(record)
        self._count(record, 1)

    def pop(self) -> Record:
        """Let go of the oldest."""
        record = self.records.popleft()
        self._count(record, -1)
        return record

    @property
    def drafts(self) -> int:
        """Passes that something was drafted for."""
        return self.offered[0] if self.offered else 0

    @property
    def rate(self) -> float:
        """Acceptance rate; only where something was drafted."""
        return self.kept / self.drafted

    @property
    def rate_error(self) -> float:
        """Standard error of the rate. Requests are independent of each other, the drafts of one are not: what
        counts is how requests differ, and there must be two."""
        n, rate = len(self), (self.kept + 0.5) / (self.drafted + 1.0)
        squares = self._kept_squared - 2.0 * rate * self._kept_drafted + rate**2 * self._drafted_squared
        return math.sqrt(max(squares * n / (n - 1), rate * (1.0 - rate) * self.drafted)) / self.drafted

    @property
    def spread(self) -> float:
        """Variance between requests of the chance to accept, beyond what chance alone explains."""
        n, mean = len(self), self.kept / self._trials
        squares = self._kept_squared - 2.0 * mean * self._kept_trials + mean**2 * self._trials_squared
        between = max(squares - mean * (1.0 - mean) * self._trials, 0.0) / self._trials_squared
        return (n * between + SPREAD_WEIGHT * SPREAD**2) / (n + SPREAD_WEIGHT)

    def shift(self, reference: Self) -> tuple[float, float]:
        """How much more often (less often: negative) a token of this window is accepted than one of the
        reference at the same depth, and the standard error of that if nothing has changed.

        Compared by depth, for the acceptance rate falls by itself where drafts get longer. The error is that
        of tokens, each a trial at its depth's hazard, and of requests, which differ in their hazards by the
        reference's spread; of both windows.
        """
        expected = variance = 0.0
        for depth, offered in enumerate(self.offered):
            at = min(depth, len(reference.offered) - 1)
            known = reference.offered[at]
            hazard = (reference.accepted[at] + 0.5) / (known + 1.0)
            expected += offered * hazard
            variance += hazard * (1.0 - hazard) * (offered + offered**2 / max(known, 1))
        spread = reference.spread
        variance += spread * self._trials_squared
        variance += spread * reference._trials_squared * (self._trials / reference._trials) ** 2
        return (self.kept - expected) / self._trials, math.sqrt(variance) / self._trials

    def differences(self, reference: Self) -> Iterable[str]:
        """In what the requests of this window are unlike those of the reference, for a person."""
        for trait in _TRAITS:
            before, now = reference.shares(trait), self.shares(trait)
            if reference.moved(self, trait) >= SHIFT:
                most = max(now, key=lambda value: now[value] - before.get(value, 0.0))
                name = most or "(none)"
                yield f"{trait}: {name} {before.get(most, 0.0):.0%} of the drafts before, {now[most]:.0%} now"
        means = {
            "tokens a request": (reference.tokens / len(reference), self.tokens / len(self)),
            "drafted depth": (reference.drafted / reference.drafts, self.drafted / self.drafts),
        }
        for name, (mean, mean_now) in means.items():
            if max(mean_now, 1e-9) / max(mean, 1e-9) >= FACTOR or mean_now * FACTOR <= mean:
                yield f"{name}: {mean:.3g} before, {mean_now:.3g} now"

    def shares(self, trait: str) -> dict[str, float]:
        """The share of drafts by what their requests were like."""
        counts = self._traits[trait]
        return {value: count / self.drafts for value, count in counts.items() if count}

    def moved(self, other: Self, trait: str) -> float:
        """The share of drafts that would have to change for both windows to be alike."""
        mine, theirs = self.shares(trait), other.shares(trait)
        return sum(abs(mine.get(v, 0.0) - theirs.get(v, 0.0)) for v in {*mine, *theirs}) / 2.0

    def _count(self, record: Record, sign: int) -> None:
        counts = record.counts
        _add(self.offered, counts.offered_at, sign)
        _add(self.accepted, counts.accepted_at, sign)
        trials, kept, drafted = sum(counts.offered_at), counts.accepted, counts.drafted
        self.drafted += sign * drafted
        self.kept += sign * kept
        self.tokens += sign * record.tokens
        self._trials += sign * trials
        self._trials_squared += sign * trials**2
        self._kept_squared += sign * kept**2
        self._kept_trials += sign * kept * trials
        self._drafted_squared += sign * drafted**2
        self._kept_drafted += sign * kept * drafted
        temperature, context = temperature_band(record.temperature), context_band(record.context)
        for trait, name in zip(_TRAITS, (temperature, context, record.task, record.verify), strict=True):
            shares = self._traits[trait]
            shares[name] += sign * counts.offered_at[0]
            if not shares[name]:
                del shares[name]


def _add(sums: list[int], values: Sequence[int], sign: int) -> None:
    """To the sums, as far as the values reach."""
    sums += [0] * (len(values) - len(sums))
    for depth, value in enumerate(values):
        sums[depth] += sign * value
