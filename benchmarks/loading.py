"""How long a start takes: `taslak --help`, and loading models that were converted before.

    python benchmarks/loading.py

Every figure is the median of three processes. "process" counts from its start to its end, importing Python
and PyTorch included; "load" is `taslak.load` alone. A model is loaded once before it is timed (fetched and
converted where that was not done yet).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import finish, requirement

PACKS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
LARGEST = PACKS[-1]
REPEATS = 3


LOAD = """
import time, taslak, torch
start = time.perf_counter()
taslak.load({name!r})
print(time.perf_counter() - start)
"""


def timed(command: list[str]) -> tuple[float, float | None]:
    """Seconds from the start of a process to its end, and the seconds it printed, if any."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole = time.perf_counter() - start
    try:
        return whole, float(done.stdout)
    except ValueError:
        return whole, None


def main() -> None:
    commands = {"taslak --help": [sys.executable, "-m", "taslak", "--help"]}
    commands |= {f"load {name}": [sys.executable, "-c", LOAD.format(name=name)] for name in PACKS}
    commands["import torch"] = [sys.executable, "-c", "import torch"]
    raw = {}
    rows = []
    for name, command in commands.items():
        timed(command)
        raw[name] = [timed(command) for _ in range(REPEATS)]
        inner = [load for _, load in raw[name] if load is not None]
        rows.append(
            [
                name,
                statistics.median(whole for whole, _ in raw[name]),
                statistics.median(inner) if inner else None,
            ]
        )
        print(rows[-1], flush=True)
    load = next(row[2] for row in rows if row[0] == f"load {LARGEST}")
    start = rows[0][1]
    finish(
        __file__,
        columns=["what", "process, s", "load, s"],
        rows=rows,
        raw=raw,
        requirements=[
            requirement("second load of the 1.5B model, s", "< 3", load, load < 3.0),
            requirement("taslak --help, s", "< 0.5", start, start < 0.5),
        ],
    )


if __name__ == "__main__":
    main()
