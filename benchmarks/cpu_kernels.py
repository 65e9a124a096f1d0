"""What the native kernels reach: one linear, a pass over a whole model, plain decoding.

    python benchmarks/cpu_kernels.py [--repeats 7] [--llama-python …]

Against "limit", the bytes read (scales counted) over the read bandwidth measured in the same run and in turns
with the rest, on AVX2 and on the best path of the processor. Passes over 1 … 16 rows of the 1.5B model are
plotted beside llama.cpp's over the same GGUF file (results/cpu_kernels.svg). Needs `pip install -e
".[bench]"`; xllamacpp may also be in an environment of its own, named by --llama-python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import linears
import matplotlib as mpl
import matplotlib.pyplot as plt
import passes
from harness import RESULTS, finish, machine, requirement

from taslak import _native, native
from taslak.models.loading import fetch

N, K = 8960, 1536
KINDS = ("bfloat16", "int8", "int4", "int4-factors")
LARGE, SMALL = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"
LINEAR_ROWS = (1, 2, 4, 5, 8)
PASS_ROWS = tuple(range(1, 17))
SHOWN = (1, 2, 4, 5, 8, 16)
LLAMA = "llama.cpp"


def llama_rows(python: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of llama.cpp's decode batches, by number of rows."""
    job = {
        "library": "llama.cpp rows",
        "model": str(fetch(LARGE)),
        "threads": native.threads(),
        "context": passes.CONTEXT,
        "rows": PASS_ROWS,
        "repeats": repeats,
    }
    command = [python, str(Path(__file__).with_name("peers.py")), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp failed:\n{done.stderr[-3000:]}")
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            found.setdefault(f"{LLAMA}/{one['rows']}", []).append(one["seconds"])
    return found


class Measured:
    """Medians by path and rows of one linear or one model."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.limit = float(result["limit"])
        self._seconds = result["seconds"]

    def seconds(self, path: str, rows: int) -> float:
        return statistics.median(self._seconds[f"{path}/{rows}"])

    def cell(self, path: str, rows: int) -> str:
        """Milliseconds, and how many times the limit that is."""
        if f"{path}/{rows}" not in self._seconds:
            return "–"
        seconds = self.seconds(path, rows)
        times = f" ({seconds / self.limit:.2f})" if self.limit else ""
        return f"{seconds * 1e3:.3g}{times}"


def linear_requirements(found: dict[str, Measured], path: str) -> list[dict[str, Any]]:
    asked = []

    def at_most(name: str, most: float, measured: float) -> None:
        asked.append(requirement(f"{path}, linear, {name}", f"≤ {most}", measured, measured <= most))

    def against_limit(kind: str, rows: int, most: float) -> None:
        at_most(f"{kind}: {rows} rows / limit", most, found[kind].seconds(path, rows) / found[kind].limit)

    against_limit("bfloat16", 1, 1.25)
    for rows, most in ((4, 1.25), (8, 2.0)):
        ratio = found["bfloat16"].seconds(path, rows) / found["bfloat16"].seconds(path, 1)
        at_most(f"bfloat16: {rows} rows / one row", most, ratio)
    for rows, most in ((1, 1.25), (4, 1.6), (8, 2.3)):
        against_limit("int8", rows, most)
    for kind in ("int4", "int4-factors"):
        against_limit(kind, 1, 1.4)
        at_most(
            f"{kind}: 8 rows / int8's", 1.0, found[kind].seconds(path, 8) / found["int8"].seconds(path, 8)
        )
    return asked


def model_requirements(results: dict[str, dict[str, Any]], path: str) -> list[dict[str, Any]]:
    asked = []
    int8 = Measured(results[f"{LARGE}, int8"])
    for rows, most in ((5, 1.4), (8, 1.7)):
        ratio = int8.seconds(path, rows) / int8.seconds(path, 1)
        asked.append(
            requirement(f"{path}, 1.5B int8: {rows} rows / one row", f"≤ {most}", ratio, ratio <= most)
        )
    least = {f"{LARGE}, int8": 0.75, f"{LARGE}, int4": 0.65, f"{SMALL}, int4": 0.6}
    for name, share in least.items():
        reached = statistics.median(results[name]["plain"][path]) * results[name]["limit"]
        asked.append(
            requirement(
                f"{path}, {name}: plain tokens/s / memory-bound", f"≥ {share}", reached, reached >= share
            )
        )
    return asked


def plot(curves: dict[str, list[float]]) -> None:
    """Milliseconds over rows."""
    mpl.rcParams["svg.hashsalt"] = "taslak"  # the same figures make the same file
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for name, milliseconds in curves.items():
        dashed = "--" if name == LLAMA else "-"
        axes.plot(PASS_ROWS, milliseconds, dashed, marker=".", label=name)
    axes.set(xlabel="rows of a pass", ylabel="ms", title="A pass of Qwen2.5-Coder 1.5B behind 512 tokens")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(RESULTS / "cpu_kernels.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32, help="of each plain answer")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has xllamacpp")
    options = parser.parse_args()
    best = _native.paths()[0]
    paths = [best] if best == "avx2" else [best, "avx2"]
    columns = ["what", "weights", "path", "limit ms", *(f"{rows} rows: ms (× limit)" for rows in SHOWN)]
    rows: list[list[Any]] = []

    def show(what: str, weights: str, path: str, found: Measured) -> None:
        cells = [found.cell(path, count) for count in SHOWN]
        rows.append([what, weights, path, round(found.limit * 1e3, 3) or None, *cells])
        print(*rows[-1], flush=True)

    linear = {kind: linears.measure(kind, N, K, LINEAR_ROWS, paths, options.repeats) for kind in KINDS}
    dispatch = linears.dispatch_seconds()
    for kind, result in linear.items():
        for path in paths:
            show(f"linear {N}×{K}", kind, path, Measured(result))
    models: dict[str, dict[str, Any]] = {}
    theirs: dict[str, list[float]] = {}
    for name, dtype in ((LARGE, "int8"), (LARGE, "int4"), (LARGE, "bfloat16"), (SMALL, "int4")):
        result = passes.measure(name, dtype, PASS_ROWS, paths, options.repeats, options.tokens)
        models[f"{name}, {dtype}"] = result
        for path in paths:
            show(name, dtype, path, Measured(result))
        if name == LARGE:  # in turns with the others
            for key, seconds in llama_rows(options.llama_python, options.repeats).items():
                theirs.setdefault(key, []).extend(seconds)
    peer = Measured({"limit": 0.0, "seconds": theirs})
    show(LARGE, "Q4_K_M", LLAMA, peer)
    curves = {
        f"{dtype}, {path}": [Measured(models[f"{LARGE}, {dtype}"]).seconds(path, r) * 1e3 for r in PASS_ROWS]
        for dtype in ("bfloat16", "int8", "int4")
        for path in paths
    }
    curves[LLAMA] = [peer.seconds(LLAMA, r) * 1e3 for r in PASS_ROWS]
    plot(curves)
    asked = [requirement("dispatch and join, µs", "< 5", dispatch * 1e6, dispatch < 5e-6)]
    for path in paths:
        asked += linear_requirements({kind: Measured(result) for kind, result in linear.items()}, path)
        asked += model_requirements(models, path)
    bandwidth = statistics.median(result["bytes"] / result["limit"] for result in models.values())
    finish(
        __file__,
        columns=columns,
        rows=rows,
        raw={"linear": linear, "models": models, "llama.cpp": theirs},
        requirements=asked,
        machine={
            **machine(),
            "threads": native.threads(),
            "read_gb_per_second": round(bandwidth / 1e9, 1),
            "paths": paths,
        },
        curves=curves,
    )


if __name__ == "__main__":
    main()
