"""What every benchmark shares: the machine it ran on, interleaved runs, and the stored result.

A result file holds the machine, versions, every raw figure, a table, and the requirements with what was
asked, measured, and whether it holds. The script exits 1 when one doesn't.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
HELD_OUT = RESULTS.parent / "training" / "held_out.jsonl"
"""Prompts that no head was trained on, 75 of each category."""
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """Cores, CPU features, and the read bandwidth measured now."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    features = next((line for line in info.splitlines() if line.startswith("flags")), "").split()
    name = next(
        (line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), ""
    )
    return {
        "cpu": name or platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "features": [flag for flag in FLAGS if flag in features],
        "read_gb_per_second": round(read_bandwidth(), 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def read_bandwidth(gib: float = 1.0, repeats: int = 7) -> float:
    """GB/s at which all threads together read a block larger than the caches; the median of some runs."""
    block = torch.ones(int(gib * 2**28))  # float32
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        block.max()
        seconds.append(time.perf_counter() - start)
    return block.numel() * 4 / statistics.median(seconds) / 1e9


def versions() -> dict[str, str]:
    """Of everything whose speed is compared, and the commit."""
    packages = {name: version(name) for name in ("taslak", "torch", "transformers", "tokenizers")}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=RESULTS,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {"python": platform.python_version(), **packages, "commit": commit or "unknown"}


def interleave(
    sides: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: Mapping[str, Callable[[], Any]] | None = None,
    progress: Callable[[str], None] = print,
) -> dict[str, list[Any]]:
    """Run A B C A B C …, the order turned round every time, after a dropped round of `warm_up` (default: the
    sides themselves)."""
    for warm in (warm_up or sides).values():
        warm()
    results: dict[str, list[Any]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else list(sides)[::-1]:
            results[name].append(sides[name]())
        progress(f"    round {repeat + 1} of {repeats}")
    return results


def requirement(name: str, asked: str, measured: float, holds: bool) -> dict[str, Any]:
    """One row of what a benchmark must show."""
    return {"name": name, "asked": asked, "measured": round(measured, 3), "holds": holds}


def finish(
    script: str,
    *,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    raw: Any,
    requirements: Sequence[Mapping[str, Any]],
    **more: Any,
) -> None:
    """Store the result, print it, and exit 1 when a requirement doesn't hold."""
    RESULTS.mkdir(exist_ok=True)
    result = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": more.pop("machine", None) or machine(),
        "versions": versions(),
        **more,
        "table": {"columns": list(columns), "rows": [list(row) for row in rows]},
        "requirements": list(requirements),
        "raw": raw,
    }
    path = RESULTS / f"{Path(script).stem}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console = Console()
    _print(console, columns, rows)
    if requirements:
        keys = ("name", "asked", "measured", "holds")
        _print(console, keys, [[r[key] for key in keys] for r in requirements])
    sys.exit(0 if all(r["holds"] for r in requirements) else 1)


def _print(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns)
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table)
