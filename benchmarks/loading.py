"""How long a start takes: `taslak --help`, and loading models that were converted before.

    python benchmarks/loading.py

Each figure is a process of its own, from its start to its end, so Python and PyTorch's import are in it; the
median of three. A model is loaded once before it is timed (fetched and converted where that was not done yet).
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


def seconds(command: list[str]) -> float:
    """From the start of a process to its end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    commands = {"taslak --help": [sys.executable, "-m", "taslak", "--help"]}
    commands |= {
        f"load {name}": [sys.executable, "-c", f"import taslak; taslak.load({name!r})"] for name in PACKS
    }
    commands["import torch alone"] = [sys.executable, "-c", "import torch"]
    raw = {}
    for name, command in commands.items():
        seconds(command)
        raw[name] = [seconds(command) for _ in range(REPEATS)]
        print(f"{name}: {statistics.median(raw[name]):.2f} s", flush=True)
    medians = {name: statistics.median(values) for name, values in raw.items()}
    load, help_ = medians[f"load {LARGEST}"], medians["taslak --help"]
    finish(
        __file__,
        columns=["process", "seconds"],
        rows=[[name, value] for name, value in medians.items()],
        raw=raw,
        requirements=[
            requirement("second load of the 1.5B model, seconds", "< 3", load, load < 3.0),
            requirement("taslak --help, seconds", "< 0.5", help_, help_ < 0.5),
        ],
    )


if __name__ == "__main__":
    main()
