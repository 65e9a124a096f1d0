"""What is read out of results: medians, speed-ups, counts, by whatever is asked. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import TypeVar

from taslak.bench.grid import PLAINLY, Setting, Way
from taslak.bench.results import Measurement, Results
from taslak.control.costs import DraftCost, PassCost
from taslak.control.theory import predicted_speedup, reach
from taslak.core.counts import Counts

MIXED = "mixed"
"""The task of a batch of several."""


@dataclass(frozen=True, slots=True)
class Case:
    """Some prompts answered together in one way, medians over the rounds, and plain decoding beside.

    seconds, after:  wall-clock of the whole call, and of it what came after the first tokens
    tokens, later:   the tokens of both
    draft, passing, other: seconds of the steps
    identical:       by prompt, over all rounds; None where only the distribution is promised
    """

    way: Way
    setting: Setting
    series: int
    prompts: tuple[str, ...]
    task: str
    tokens: int
    later: int
    seconds: float
    after: float
    draft: float
    passing: float
    other: float
    counts: Counts
    identical: tuple[bool | None, ...]
    plain_tokens: int
    plain_later: int
    plain_seconds: float
    plain_after: float

    @property
    def speedup(self) -> float:
        """Tokens a second over plain decoding's, everything included."""
        return speedup([self])


def speedup(cases: Sequence[Case], *, after: bool = False) -> float:
    """Tokens a second of all these cases together over plain decoding's on the same prompts. after: without
    what came before the first tokens (encoding, prefill)."""
    if after:
        own = sum(case.later for case in cases) / sum(case.after for case in cases)
        plain = sum(case.plain_later for case in cases) / sum(case.plain_after for case in cases)
    else:
        own = sum(case.tokens for case in cases) / sum(case.seconds for case in cases)
        plain = sum(case.plain_tokens for case in cases) / sum(case.plain_seconds for case in cases)
    return own / plain


def counted(cases: Iterable[Case]) -> Counts:
    """All their passes together."""
    return Counts.total(case.counts for case in cases)


class Figures:
    """Of one run.

    cases:  every way but plain decoding
    base:   the setting under which every prompt was answered
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.cases = _cases(results.measurements)
        if not self.cases:
            raise ValueError("no way was compared with plain decoding")
        self.base = self.cases[0].setting
        self._base_series = self.cases[0].series

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(case.way.method for case in self.cases))

    @cached_property
    def main(self) -> list[Case]:
        """The base ways over every prompt."""
        first = self.cases[0].way.gamma
        return [c for c in self.cases if c.series == self._base_series and c.way.gamma == first]

    def of(self, method: str) -> list[Case]:
        """Of `main`."""
        return [case for case in self.main if case.way.method == method]

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(case.task for case in self.main))

    def along(self, method: str, what: Callable[[Setting], float]) -> dict[float, list[Case]]:
        """Base ways of a method by one part of the setting, the others at their base; over prompts that all
        values have. Empty where only one value was run."""
        first = self.cases[0].way.gamma
        found: dict[float, list[Case]] = {}
        for case in self.cases:
            moved = [
                getattr(case.setting, name) != getattr(self.base, name)
                for name in ("temperature", "context", "max_tokens", "batch")
            ]
            if case.way != Way(method, first) or sum(moved) > 1:
                continue
            if what(case.setting) != what(self.base) or not any(moved):
                found.setdefault(what(case.setting), []).append(case)
        return _over_the_same(found) if len(found) > 1 else {}

    def by_gamma(self, method: str) -> dict[int, list[Case]]:
        """Fixed γ at the base setting, over prompts that all have."""
        found: dict[int, list[Case]] = {}
        for case in self.cases:
            if case.way.method == method and case.way.gamma is not None and case.setting == self.base:
                found.setdefault(case.way.gamma, []).append(case)
        return _over_the_same(found)

    def deepest(self, method: str) -> Counts | None:
        """Counts of the largest fixed γ: the hazards of all depths. None where no γ was fixed."""
        by = self.by_gamma(method)
        return counted(by[max(by)]) if by else None

    def predicted(self, method: str, gammas: Sequence[int]) -> list[float]:
        """`theory.predicted_speedup` of this run's hazards, passes and draft seconds; [] without them."""
        counts, passes = self.deepest(method), self.results.passes
        if counts is None or passes is None or not counts.hazards:
            return []
        by = self.by_gamma(method)
        every = [case for cases in by.values() for case in cases]
        other = sum(case.other for case in every) / sum(case.counts.passes for case in every)
        passing = PassCost(list(passes.rows), list(passes.seconds))
        return [
            predicted_speedup(
                counts.hazards, gamma, passing, _draft_cost(by), reach=reach(counts), other=other
            )
            for gamma in gammas
        ]

    def losses(self) -> list[Case]:
        """Of `main`, what was slower than plain decoding, the worst first."""
        return sorted((case for case in self.main if case.speedup < 1.0), key=lambda case: case.speedup)

    def identical(self, method: str) -> tuple[int, int, int]:
        """Over all cells of a method: answers that are plain decoding's, those of which that is promised, and
        those that part at more than a near-tie."""
        same = asked = wrong = 0
        for made in self.results.measurements:
            if made.way.method != method:
                continue
            for answer in made.answers:
                if answer.identical is not None:
                    asked += 1
                    same += answer.identical
                if answer.difference is not None:
                    wrong += not answer.difference["near_tie"]
        return same, asked, wrong


Value = TypeVar("Value", bound=float)


def _over_the_same(found: dict[Value, list[Case]]) -> dict[Value, list[Case]]:
    """Without the cases of prompts that another value lacks, in the order of the values."""
    every = [{prompt for case in cases for prompt in case.prompts} for cases in found.values()]
    common = set.intersection(*every) if every else set()
    kept = {
        value: [case for case in cases if common.issuperset(case.prompts)] for value, cases in found.items()
    }
    return dict(sorted((value, cases) for value, cases in kept.items() if cases))


def _draft_cost(by: dict[int, list[Case]]) -> DraftCost:
    """Seconds of a draft over its depth: the line of least squares through what was measured at each γ."""
    points = [
        (float(gamma), sum(case.draft for case in cases) / counted(cases).passes)
        for gamma, cases in by.items()
    ]
    middle, level = mean(x for x, _ in points), mean(y for _, y in points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = sum((x - middle) * (y - level) for x, y in points) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return DraftCost(fixed=max(level - slope * middle, 0.0), level=slope)


def _cases(measurements: Iterable[Measurement]) -> list[Case]:
    """In the order of the run."""
    cells: dict[tuple[int, Setting, tuple[str, ...], Way], list[Measurement]] = {}
    for made in measurements:
        cells.setdefault((made.series, made.setting, made.prompts, made.way), []).append(made)
    found = []
    for (series, setting, prompts, way), rounds in cells.items():
        plain = cells.get((series, setting, prompts, PLAINLY))
        if way == PLAINLY or plain is None:
            continue
        tasks = {answer.task for answer in rounds[0].answers}
        # τ and wall clock of one claim come from one call: the middle one
        middle, plainly = _middle(rounds), _middle(plain)
        found.append(
            Case(
                way=way,
                setting=setting,
                series=series,
                prompts=prompts,
                task=tasks.pop() if len(tasks) == 1 else MIXED,
                tokens=middle.tokens,
                later=_later(middle),
                seconds=middle.seconds,
                after=middle.seconds - middle.first,
                draft=middle.draft,
                passing=middle.passing,
                other=middle.other,
                counts=middle.counts,
                identical=tuple(
                    None if None in each else all(each)
                    for each in zip(*([a.identical for a in made.answers] for made in rounds), strict=True)
                ),
                plain_tokens=plainly.tokens,
                plain_later=_later(plainly),
                plain_seconds=plainly.seconds,
                plain_after=plainly.seconds - plainly.first,
            )
        )
    return found


def _middle(rounds: Sequence[Measurement]) -> Measurement:
    """The median by seconds a token; of an even number the faster of both."""
    ordered = sorted(rounds, key=lambda made: made.seconds / max(made.tokens, 1))
    return ordered[(len(ordered) - 1) // 2]


def _later(made: Measurement) -> int:
    """Tokens after the first pass of every turn; at least one, for a rate."""
    first = sum(turn.emitted[0] for answer in made.answers for turn in answer.turns if turn.emitted)
    return max(made.tokens - first, 1)
