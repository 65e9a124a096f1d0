"""One linear at a time: what a product with some rows costs, against the time it takes to read the weights.

"limit" is what the kernels' own threads need to read the same bytes (scales counted) end to end, measured
between the others. Everything, the limit too, goes round one ring of copies larger than the caches, so that
weights come from memory as they do in a pass over a whole model; a loop over one matrix would see twice that
speed where the last-level cache is large.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from harness import interleave

from taslak import _native
from taslak.native import Packed, allocate, linear

RING_BYTES = 640e6  # of a kind's copies: more than the largest last-level caches
RUN_BYTES = 60e6  # of the copies in one measurement: enough for its start not to show


class Ring:
    """Copies of one weight, handed out in turn."""

    def __init__(self, kind: str, n: int, k: int) -> None:
        self.nbytes = _native.PackedMatrix(kind, n, k, 0).nbytes
        copies = round(RING_BYTES / self.nbytes)
        block = allocate(copies * self.nbytes).view(copies, self.nbytes)
        if kind == "bfloat16":
            block[0].view(torch.bfloat16).copy_(torch.randn(self.nbytes // 2))
        else:  # random codes; scales that are ordinary numbers (bytes under 60 are small float16s)
            block[0].random_(0, 60)
        block[1:] = block[0]
        self._weights = [Packed.from_buffer(kind, (n, k), row) for row in block]
        self._next = 0

    def take(self) -> list[Packed]:
        """The next few."""
        start, count = self._next, max(1, round(RUN_BYTES / self.nbytes))
        self._next = (start + count) % len(self._weights)
        return [self._weights[(start + i) % len(self._weights)] for i in range(count)]


def _seconds_each(weights: list[Packed], run: Callable[[Packed], object]) -> float:
    start = time.perf_counter()
    for weight in weights:
        run(weight)
    return (time.perf_counter() - start) / len(weights)


def measure(
    kind: str, n: int, k: int, rows: Sequence[int], paths: Sequence[str], repeats: int
) -> dict[str, Any]:
    """Reading and every number of rows on every path, in turns; seconds of one product."""
    ring = Ring(kind, n, k)

    def read() -> float:
        return _seconds_each(ring.take(), lambda w: _native.read_all(w.buffer.data_ptr(), w.nbytes))

    def multiply(path: str, count: int) -> Callable[[], float]:
        x, out = torch.randn(count, k), torch.empty(count, n)

        def run() -> float:
            _native.use(path)
            return _seconds_each(ring.take(), lambda w: linear(x, w, out=out))

        return run

    sides = {"read": read} | {f"{path}/{count}": multiply(path, count) for path in paths for count in rows}
    seconds = interleave(sides, repeats, progress=lambda _: None)
    return {"bytes": ring.nbytes, "limit": statistics.median(seconds["read"]), "seconds": seconds}


def dispatch_seconds() -> float:
    """Of a job without work: hand it out, join."""
    times = 2000
    start = time.perf_counter()
    _native.run_counted(2 * _native.threads(), times)
    return (time.perf_counter() - start) / times
