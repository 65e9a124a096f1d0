"""What a pass of the target costs: seconds over rows, measured in the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from taslak.bench.results import PassTimes
from taslak.control.measure import fill, timed
from taslak.models.target import Target

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 25, 33)
"""Of a linear draft of γ nodes there are γ + 1."""


def pass_times(target: Target, context: int, *, rows: Sequence[int] = ROWS, repeats: int = 7) -> PassTimes:
    """Time passes of one sequence behind `context` tokens, all numbers of rows in turns; the first turn isn't
    counted. The context is cut to what leaves room for the rows."""
    context = max(min(context, target.context - max(rows)), 1)
    cache = target.allocate(context + max(rows))
    try:
        fill(cache, context)
        took = timed(target, cache, rows, lambda turns: turns >= repeats)
    finally:
        cache.release()
    return PassTimes(context, tuple(rows), tuple(map(median, took)))
