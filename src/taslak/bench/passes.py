"""What a pass of the target costs: seconds over rows, measured in the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

from taslak.bench.results import PassTimes
from taslak.models.target import Target, chain_rows

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 25, 33)
"""Of a linear draft of γ nodes there are γ + 1."""


def pass_times(target: Target, context: int, *, rows: Sequence[int] = ROWS, repeats: int = 7) -> PassTimes:
    """Time passes of one sequence behind `context` tokens, all numbers of rows in turns; the first turn isn't
    counted. The context is cut to what leaves room for the rows."""
    context = max(min(context, target.context - max(rows)), 1)
    ids = [1 + i * 7919 % (target.vocab_size - 1) for i in range(max(rows))]
    cache = target.allocate(context + max(rows))
    took: dict[int, list[float]] = {count: [] for count in rows}
    try:
        # what stands in the cache makes no difference to the time: only how much it is
        cache.add(range(-1, context - 1))
        cache.keep(range(context))
        for turn in range(repeats + 1):
            for count in rows if turn % 2 else rows[::-1]:
                began = perf_counter()
                target.forward(
                    [chain_rows(cache, ids[:count], count)]
                ).logits.cpu()  # elsewhere it is waited for
                if turn:
                    took[count].append(perf_counter() - began)
                cache.crop(context)
    finally:
        cache.release()
    return PassTimes(context, tuple(rows), tuple(median(took[count]) for count in rows))
