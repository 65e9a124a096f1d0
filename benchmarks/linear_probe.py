"""One linear at a time: what 1 … 8 rows cost, against the time it takes to read the weights.

    python benchmarks/linear_probe.py                          every shape and kind
    python benchmarks/linear_probe.py 8960x1536 --rows 1,4,8   one of them

"limit" is what it takes the kernels' own threads to read the same bytes (scales counted) end to end, measured
between the others. Everything measured, the limit too, goes round one ring of copies larger than the caches,
so that weights come from memory as they do in a pass over a whole model; a loop over one matrix would see
twice that speed where the last-level cache is large.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import finish, interleave, machine, requirement
from torch import Tensor

from taslak import _native, native
from taslak.native import Packed, allocate, linear

SHAPES = ("8960x1536", "1536x8960", "49152x576", "1536x576", "576x1536", "192x576")
KINDS = ("bfloat16", "int8", "int4", "int4-factors")
ASKED = "8960x1536"
READ = 0  # rows of a run that only reads
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


def seconds_each(weights: list[Packed], run: Callable[[Packed], object]) -> float:
    start = time.perf_counter()
    for weight in weights:
        run(weight)
    return (time.perf_counter() - start) / len(weights)


def runs_of(ring: Ring, n: int, k: int, rows: list[int]) -> dict[str, Callable[[], float]]:
    """By number of rows, READ included: a measurement of the next copies, seconds for one."""

    def read() -> float:
        return seconds_each(ring.take(), lambda w: _native.read_all(w.buffer.data_ptr(), w.nbytes))

    def multiply(x: Tensor, out: Tensor) -> Callable[[], float]:
        return lambda: seconds_each(ring.take(), lambda w: linear(x, w, out=out))

    runs = {str(READ): read}
    return runs | {str(count): multiply(torch.randn(count, k), torch.empty(count, n)) for count in rows}


def dispatch_seconds() -> float:
    """Of a job without work: hand it out, join."""
    times = 2000
    start = time.perf_counter()
    _native.run_counted(2 * native.threads(), times)
    return (time.perf_counter() - start) / times


def measure(shape: str, kinds: list[str], rows: list[int], repeats: int) -> dict[str, Any]:
    """One kind after the other; its rows and the reading interleaved."""
    n, k = (int(size) for size in shape.split("x"))
    result: dict[str, Any] = {}
    for kind in kinds:
        if kind == "int4-factors" and k % 256:
            continue
        ring = Ring(kind, n, k)
        seconds = interleave(runs_of(ring, n, k, rows), repeats)
        limit = statistics.median(seconds[str(READ)])
        result[kind] = {
            "bytes": ring.nbytes,
            "limit_ms": limit * 1e3,
            "read_gb_per_second": ring.nbytes / limit / 1e9,
            "ms": {count: statistics.median(seconds[str(count)]) * 1e3 for count in rows},
            "all_ms": {count: [round(s * 1e3, 4) for s in times] for count, times in seconds.items()},
        }
    return result


def requirements(result: dict[str, Any], dispatch: float) -> list[dict[str, Any]]:
    asked = [requirement("dispatch and join, µs", "< 5", dispatch * 1e6, dispatch < 5e-6)]

    def against_limit(kind: str, rows: int, most: float) -> None:
        ratio = result[kind]["ms"][rows] / result[kind]["limit_ms"]
        asked.append(requirement(f"{kind}, {rows} rows / limit", f"<= {most}", ratio, ratio <= most))

    def against(kind: str, rows: int, other: str, other_rows: int, most: float) -> None:
        ratio = result[kind]["ms"][rows] / result[other]["ms"][other_rows]
        name = f"{kind}, {rows} rows / {other}, {other_rows} rows"
        asked.append(requirement(name, f"<= {most}", ratio, ratio <= most))

    against_limit("bfloat16", 1, 1.25)
    against("bfloat16", 4, "bfloat16", 1, 1.25)
    against("bfloat16", 8, "bfloat16", 1, 2.0)
    against_limit("int8", 1, 1.25)
    against_limit("int8", 4, 1.6)
    against_limit("int8", 8, 2.3)
    for kind in ("int4", "int4-factors"):
        against_limit(kind, 1, 1.4)
        against(kind, 8, "int8", 8, 1.0)
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), metavar="NxK")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--path", default=_native.path(), help=f"one of {', '.join(_native.paths())}")
    options = parser.parse_args()
    _native.use(options.path)
    kinds, rows = options.kinds.split(","), [int(count) for count in options.rows.split(",")]

    results = {shape: measure(shape, kinds, rows, options.repeats) for shape in options.shapes}
    dispatch = dispatch_seconds()
    table = [
        [shape, kind, k["limit_ms"], *(f"{ms:.3f} ({ms / k['limit_ms']:.2f})" for ms in k["ms"].values())]
        for shape, result in results.items()
        for kind, k in result.items()
    ]
    complete = set(KINDS) <= set(kinds) and {1, 4, 8} <= set(rows)
    gbs = statistics.median(k["read_gb_per_second"] for result in results.values() for k in result.values())
    finish(
        __file__ if options.path == _native.paths()[0] else f"linear_probe_{options.path}",
        columns=["shape", "kind", "limit ms", *(f"{count} rows: ms (× limit)" for count in rows)],
        rows=table,
        raw=results,
        requirements=requirements(results[ASKED], dispatch) if complete and ASKED in results else [],
        machine={
            **machine(),
            "threads": native.threads(),
            "read_gb_per_second": round(gbs, 1),
            "path": native.describe(),
        },
        dispatch_us=dispatch * 1e6,
    )


if __name__ == "__main__":
    main()
