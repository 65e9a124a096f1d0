"""Where the time of a plain step of the default model goes: in the native calls, and outside of them.

    python benchmarks/plain_step.py [--tokens 150] [--repeats 7]

What is outside is Python: scheduling, deciding, text, events, and whoever reads the stream. Steps are timed
from event to event; the calls by standing between them and their callers, which costs them a microsecond
each. Greedy and at temperature 0.8, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from harness import finish, interleave, machine, requirement

import taslak
from taslak.models.loading import DEFAULT_PACK
from taslak.models.native_ops import NativeLayers
from taslak.native import draw

TEMPERATURES = (0.0, 0.8)
PROMPT = "Tell me a long story about a river and a mountain."
WARM_UP = 8
"""Steps that aren't counted, the prompt's pass among them."""
MOST = 0.10


class Timed:
    """Everything of an object of the extension, its calls timed in `seconds`."""

    def __init__(self, inner: Any, seconds: list[float]) -> None:
        self._inner = inner
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._seconds[0] += time.perf_counter() - start

        setattr(self, name, timed)  # the next look finds it without coming here
        return timed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    here = machine()
    model = taslak.load(DEFAULT_PACK, method="ngram")
    layers = model.target._layers
    if not isinstance(layers, NativeLayers):
        raise SystemExit("the native kernels don't run here (see `taslak info`): there is nothing to measure")
    inside = [0.0]
    layers._layers = Timed(layers._layers, inside)  # type: ignore[assignment]
    draw._native = Timed(draw._native, inside)

    def steps(temperature: float) -> Callable[[], tuple[float, float]]:
        """-> medians over the steps of one answer: seconds of a step, and of its native calls."""

        def run() -> tuple[float, float]:
            times = []
            for event in model.stream(
                PROMPT, max_tokens=options.tokens, temperature=temperature, seed=3, speculate=False
            ):
                if event.tokens:
                    times.append((time.perf_counter(), inside[0]))
            pairs = list(pairwise(times))[WARM_UP:]
            whole = statistics.median(after[0] - before[0] for before, after in pairs)
            calls = statistics.median(after[1] - before[1] for before, after in pairs)
            return whole, calls

        return run

    found = interleave({f"T = {t:g}": steps(t) for t in TEMPERATURES}, options.repeats)
    rows: list[list[Any]] = []
    asked = []
    for name, runs in found.items():
        whole = statistics.median(run[0] for run in runs)
        outside = statistics.median(run[0] - run[1] for run in runs)
        share = statistics.median((run[0] - run[1]) / run[0] for run in runs)
        rows.append([name, round(whole * 1e3, 2), round(outside * 1e6), round(share, 3)])
        asked.append(requirement(f"outside the kernels, {name}", f"< {MOST}", share, share < MOST))
    finish(
        __file__,
        columns=["setting", "step, ms", "outside the kernels, µs", "share"],
        rows=rows,
        raw={"model": DEFAULT_PACK, "dtype": model.dtype, "runs": found},
        requirements=asked,
        machine=here,
    )


if __name__ == "__main__":
    main()
