"""One linear at a time: what 1 … 8 rows cost, against the time it takes to read the weights.

    python benchmarks/linear_probe.py                          every shape and kind
    python benchmarks/linear_probe.py 8960x1536 --rows 1,4,8   one of them

"limit" is bytes (scales counted) over the read bandwidth of the same run: the kernels' own threads reading
a block larger than the caches. Each weight is one of many copies used in turn, so that no cache holds it from
the last time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import finish, machine, requirement
from torch import Tensor

from taslak import _native, native
from taslak.native import Packed, allocate, linear

SHAPES = ("8960x1536", "1536x8960", "49152x576", "1536x576", "576x1536", "192x576")
KINDS = ("bfloat16", "int8", "int4", "int4-factors")
ASKED = "8960x1536"
COLD_BYTES = 120e6  # of weights between two uses of one copy: far more than a core's own caches


def weight(kind: str, n: int, k: int) -> Packed:
    """Random codes; scales that are ordinary numbers (bytes under 60 are small float16s)."""
    buffer = allocate(_native.PackedMatrix(kind, n, k, 0).nbytes)
    if kind == "bfloat16":
        buffer.view(torch.bfloat16).copy_(torch.randn(buffer.numel() // 2))
    else:
        buffer.random_(0, 60)
    return Packed.from_buffer(kind, (n, k), buffer)


class Shape:
    """All runs of one shape, ready to be interleaved."""

    def __init__(self, shape: str, kinds: list[str], rows: list[int]) -> None:
        n, k = (int(size) for size in shape.split("x"))
        self.runs: dict[tuple[str, int], Callable[[], float]] = {}
        self.bytes: dict[str, int] = {}
        for kind in kinds:
            if kind == "int4-factors" and k % 256:
                continue
            first = weight(kind, n, k)
            copies = min(64, max(2, round(COLD_BYTES / first.nbytes)))
            weights = [first, *(weight(kind, n, k) for _ in range(copies - 1))]
            self.bytes[kind] = first.nbytes
            for count in rows:
                self.runs[kind, count] = self._run(weights, torch.randn(count, k), torch.empty(count, n))

    @staticmethod
    def _run(weights: list[Packed], x: Tensor, out: Tensor) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for w in weights:
                linear(x, w, out=out)
            return (time.perf_counter() - start) / len(weights)

        return run


def read_bandwidth(block: Tensor) -> float:
    """GB/s."""
    start = time.perf_counter()
    _native.read_all(block.data_ptr(), block.numel())
    return block.numel() / (time.perf_counter() - start) / 1e9


def dispatch_seconds() -> float:
    """Of a job without work: hand it out, join."""
    times = 2000
    start = time.perf_counter()
    _native.run_counted(2 * native.threads(), times)
    return (time.perf_counter() - start) / times


def measure(shape: str, kinds: list[str], rows: list[int], repeats: int, block: Tensor) -> dict[str, Any]:
    runs = Shape(shape, kinds, rows)
    bandwidth: list[float] = []
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs.runs}
    for repeat in range(repeats + 1):
        gbs = read_bandwidth(block)
        if repeat:
            bandwidth.append(gbs)
        order = list(runs.runs) if repeat % 2 else list(runs.runs)[::-1]
        for key in order:
            taken = runs.runs[key]()
            if repeat:
                seconds[key].append(taken)
    gbs = statistics.median(bandwidth)
    result: dict[str, Any] = {"read_gb_per_second": round(gbs, 2), "kinds": {}}
    for kind, nbytes in runs.bytes.items():
        limit = nbytes / gbs / 1e9
        ms = {count: statistics.median(seconds[kind, count]) * 1e3 for count in rows}
        result["kinds"][kind] = {
            "bytes": nbytes,
            "limit_ms": limit * 1e3,
            "ms": ms,
            "all_ms": {count: [round(s * 1e3, 4) for s in seconds[kind, count]] for count in rows},
        }
    return result


def requirements(result: dict[str, Any], dispatch: float) -> list[dict[str, Any]]:
    kinds = result["kinds"]
    asked = [requirement("dispatch and join, µs", "< 5", dispatch * 1e6, dispatch < 5e-6)]

    def against_limit(kind: str, rows: int, most: float) -> None:
        ratio = kinds[kind]["ms"][rows] / kinds[kind]["limit_ms"]
        asked.append(requirement(f"{kind}, {rows} rows / limit", f"<= {most}", ratio, ratio <= most))

    def against(kind: str, rows: int, other: str, other_rows: int, most: float) -> None:
        ratio = kinds[kind]["ms"][rows] / kinds[other]["ms"][other_rows]
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

    block = allocate(1 << 29)
    block.fill_(1)
    results = {shape: measure(shape, kinds, rows, options.repeats, block) for shape in options.shapes}
    dispatch = dispatch_seconds()
    table = [
        [shape, kind, k["limit_ms"], *(f"{ms:.3f} ({ms / k['limit_ms']:.2f})" for ms in k["ms"].values())]
        for shape, result in results.items()
        for kind, k in result["kinds"].items()
    ]
    complete = {"bfloat16", "int8", "int4", "int4-factors"} <= set(kinds) and {1, 4, 8} <= set(rows)
    gbs = statistics.median(result["read_gb_per_second"] for result in results.values())
    finish(
        f"linear_probe_{options.path}",
        columns=["shape", "kind", "limit ms", *(f"{count} rows: ms (× limit)" for count in rows)],
        rows=table,
        raw=results,
        requirements=requirements(results[ASKED], dispatch) if complete and ASKED in results else [],
        machine={
            **machine(),
            "threads": native.threads(),
            "read_gb_per_second": gbs,
            "path": native.describe(),
        },
        dispatch_us=dispatch * 1e6,
    )


if __name__ == "__main__":
    main()
