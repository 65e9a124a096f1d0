"""What a step costs on this machine: the pass over its rows and context, each drafter, and the rest.

Seconds throughout. Knows nothing about acceptance. Measured by `calibrate`, corrected by what steps take.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from taslak.core.sampling import Sampling

QUICK, SLOW = 0.05, 0.01
"""How fast a live timing is believed: for what slows everything alike, and for one figure of its own."""

_OUTLIER = math.log(1.5)
"""A timing further off than this counts as this far off: one hiccup of the machine is no news."""


@dataclass(slots=True)
class PassCost:
    """Of the target's pass.

    rows, seconds: [n] measured with next to no context; between them it is interpolated, since row blocks
                   make it a staircase and no formula
    context:       for each committed position of a sequence, whatever its rows
    attended:      for each row and committed position it attends to
    spared:        less for each row that wants no logits, as those of a prompt
    beyond:        for each row past the last of `rows`; 0 = as between the last two
    """

    rows: list[int]
    seconds: list[float]
    context: float = 0.0
    attended: float = 0.0
    spared: float = 0.0
    beyond: float = 0.0

    def __call__(
        self, rows: float, context: float = 0.0, attended: float | None = None, prompt: float = 0.0
    ) -> float:
        """rows: in the pass, those of prompts among them; context: committed positions, summed over
        sequences; attended: the same summed over rows, None = every row belongs to one sequence; prompt: of
        the rows, those that want no logits."""
        if attended is None:
            attended = rows * context
        seconds = self._at(rows)
        if prompt:
            seconds = max(seconds - self.spared * prompt, self.seconds[0])
        return seconds + self.context * context + self.attended * attended

    def _at(self, rows: float) -> float:
        known, seconds = self.rows, self.seconds
        if len(known) == 1 or rows > known[-1]:
            return seconds[-1] + self.tail(rows)
        i = max(bisect_left(known, rows), 1)
        slope = (seconds[i] - seconds[i - 1]) / (known[i] - known[i - 1])
        return seconds[i - 1] + slope * (rows - known[i - 1])

    def tail(self, rows: float) -> float:
        """Of the rows past the last one that was measured."""
        return self.slope * max(rows - self.rows[-1], 0.0)

    @property
    def slope(self) -> float:
        """Of each row past the last one that was measured."""
        if self.beyond or len(self.rows) == 1:
            return self.beyond
        return (self.seconds[-1] - self.seconds[-2]) / (self.rows[-1] - self.rows[-2])

    def correct(self, rows: int, off: float) -> None:
        """Take in that a pass of so many rows was exp(off) times what was expected."""
        for i, known in enumerate(self.rows):
            if known == rows:
                self.seconds[i] *= math.exp(SLOW * off)


@dataclass(slots=True)
class DraftCost:
    """Of a drafter's draft.

    fixed: of any; level: of each level; lag: of each token it has to catch up on
    hear:  of each pass that it only hears of
    left:  share of the pass that it leaves to do: drafting with the target's own layers is work done before
    """

    fixed: float
    level: float
    lag: float = 0.0
    hear: float = 0.0
    left: float = 1.0

    def __call__(self, levels: float) -> float:
        return self.fixed + self.level * levels


@dataclass(slots=True)
class RestCost:
    """Of all that is neither draft nor pass.

    plain, drafted: in a step with an empty draft and with a draft, one row visited: a token drawn from it
    row:            of each further row that is visited
    """

    plain: float
    drafted: float
    row: float = 0.0

    def __call__(self, drafted: bool, visited: float) -> float:
        return (self.drafted if drafted else self.plain) + self.row * (visited - 1.0)


def mode_of(sampling: Sampling, verify: str) -> str:
    """What the rest of a step depends on: how tokens are drawn and drafts verified."""
    drawn = "greedy" if sampling.greedy else "sampled, cut" if sampling.cut else "sampled"
    penalised = ", penalised" if sampling.penalised else ""
    return drawn + penalised + (", rejection" if verify == "rejection" else "")


@dataclass(slots=True)
class Costs:
    """Of a model and its drafters.

    drafters: by name
    rest:     of one sequence, by `mode_of`
    scale:    how much slower than when it was measured everything is just now
    crowds:   by drafter and size of a batch (powers of two), how much longer a draft takes than for one
    """

    passing: PassCost
    drafters: dict[str, DraftCost] = field(default_factory=dict)
    rest: dict[str, RestCost] = field(default_factory=dict)
    scale: float = 1.0
    crowds: dict[str, float] = field(default_factory=dict)

    def pass_(
        self, rows: float, context: float = 0.0, attended: float | None = None, prompt: float = 0.0
    ) -> float:
        """See PassCost."""
        return self.scale * self.passing(rows, context, attended, prompt)

    def draft(self, name: str, levels: float, count: int = 1) -> float:
        """For `count` sequences together. Of a drafter that was never measured: nothing."""
        cost = self.drafters.get(name)
        if cost is None:
            return 0.0
        crowd = 1.0 if count == 1 else self.crowds.get(_crowd(name, count), 1.0)
        return self.scale * crowd * cost(levels)

    def catch_up(self, name: str, tokens: int) -> float:
        """Of a drafter that missed so many tokens."""
        cost = self.drafters.get(name)
        return 0.0 if cost is None else self.scale * cost.lag * tokens

    def hear(self, name: str, passes: int) -> float:
        """Of a drafter that hears of so many passes."""
        cost = self.drafters.get(name)
        return 0.0 if cost is None else self.scale * cost.hear * passes

    def left(self, names: Sequence[str | None], rows: int | None = None) -> float:
        """Share of a pass left to do where these drafters drafted, one name a sequence, None for nobody.
        rows: of the pass besides drafts, None = one a sequence; what is left of others' rows is all."""
        costs = (self.drafters.get(name) for name in names if name is not None)
        return 1.0 - sum(1.0 - cost.left for cost in costs if cost is not None) / (rows or len(names))

    def rest_of(self, mode: str, drafted: bool, visited: float = 1.0) -> float:
        """Of one sequence, with so many rows visited. A mode never measured costs what the first one does."""
        cost = self._rest(mode)
        return 0.0 if cost is None else self.scale * cost(drafted, visited)

    def draw_of(self, mode: str) -> float:
        """Of each further row that is visited."""
        cost = self._rest(mode)
        return 0.0 if cost is None else self.scale * cost.row

    def _rest(self, mode: str) -> RestCost | None:
        return self.rest.get(mode) or next(iter(self.rest.values()), None)

    def saw_pass(self, rows: int, expected: float, took: float, prompt: int = 0) -> None:
        """Take in one whole pass. prompt: of its rows, those of prompts.

        Where most of it is rows past those that were measured, it tells what these cost. How slow the machine
        is just now is told by passes of decoding alone: what is known of prompts is too rough for that.
        """
        passing, tail = self.passing, self.scale * self.passing.tail(rows)
        if tail > expected / 2:
            seen = max(took - (expected - tail), 1e-9)
            passing.beyond = passing.slope * math.exp(QUICK * _off(tail, seen))
        elif not prompt:
            off = _off(expected, took)
            self.scale *= math.exp(QUICK * off)
            passing.correct(rows, off)

    def saw_part(self, name: str, expected: float, took: float) -> None:
        """Take in what a drafter left to do of a pass."""
        cost = self.drafters.get(name)
        if cost is not None:
            cost.left = min(cost.left * math.exp(SLOW * _off(expected, took)), 1.0)

    def saw_draft(self, name: str, levels: int, took: float, count: int = 1) -> None:
        """Take in one draft, made for so many sequences together."""
        cost = self.drafters.get(name)
        if cost is None:
            return
        off = _off(self.draft(name, levels, count), took)
        if count > 1:
            crowd = _crowd(name, count)
            self.crowds[crowd] = self.crowds.get(crowd, 1.0) * math.exp(QUICK * off)
        else:
            by = math.exp(SLOW * off)
            cost.fixed *= by
            cost.level *= by

    def saw_rest(self, mode: str, drafted: bool, took: float, visited: float = 1.0) -> None:
        """Take in the rest of one step of one sequence, which visited so many rows.

        What was off is put down to the step and to its rows by their shares (the gradient of the squared
        error, all in logarithms): steps that visit few rows and steps that visit many tell the two apart.
        """
        known = self.rest.get(mode)
        took /= self.scale
        if known is None:  # what a draft adds, and a row, is guessed from the first mode
            first = next(iter(self.rest.values()), RestCost(0.0, 0.0))
            before = first(drafted, visited)
            times = took / before if before > 0.0 else 0.0
            self.rest[mode] = (
                RestCost(first.plain * times, first.drafted * times, first.row * times)
                if times and first.plain > 0.0
                else RestCost(took, took)
            )
            return
        expected = known(drafted, visited)
        by = QUICK * _off(expected, took)
        if not by:
            return
        of_rows = min(max(known.row * (visited - 1.0) / expected, 0.0), 1.0)
        known.row *= math.exp(by * of_rows)
        if drafted:
            known.drafted *= math.exp(by * (1.0 - of_rows))
        else:
            known.plain *= math.exp(by * (1.0 - of_rows))

    def break_even(self, name: str, depth: int, mode: str, context: float = 0.0) -> float:
        """Accepted tokens a step that make drafting `depth` tokens worth what it costs."""
        plain = self.pass_(1, context) + self.rest_of(mode, False)
        passing = self.pass_(1 + depth, context) * self.left([name])
        drafted = passing + self.draft(name, depth) + self.rest_of(mode, True)
        # an accepted token saves a plain step and is drawn as in one
        return max((drafted - plain) / max(plain - self.draw_of(mode), 1e-9), 0.0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Costs:
        """Raises KeyError, TypeError or ValueError for anything that `as_json` didn't give."""
        costs = cls(
            PassCost(**values["passing"]),
            {name: DraftCost(**cost) for name, cost in values["drafters"].items()},
            {mode: RestCost(**cost) for mode, cost in values["rest"].items()},
            crowds=dict(values["crowds"]),
        )
        figures: Sequence[float] = costs.passing.seconds
        if not figures or len(figures) != len(costs.passing.rows) or not all(0 < s < 1e4 for s in figures):
            raise ValueError("pass costs are missing or no seconds")
        return costs


def _crowd(name: str, count: int) -> str:
    return f"{name}/{1 << (count - 1).bit_length()}"


def _off(expected: float, took: float) -> float:
    """log(took / expected), outliers cut off."""
    if expected <= 0.0 or took <= 0.0:
        return 0.0
    return min(max(math.log(took / expected), -_OUTLIER), _OUTLIER)
