"""How long a start takes, and how much memory a target with its drafter.

    python benchmarks/loading.py

A start is a fresh process, from before its interpreter runs to the end of the first pass over a short prompt.
Its parts: imports (the interpreter's own start, PyTorch and taslak), `taslak.load` (of it the weights and the
tokenizer, side by side), the first answer token. Medians of interleaved processes; every model was fetched,
packed and read once before, so that its files are in the system's page cache.

Memory is the peak of a process that drafts with a second model, beyond what the libraries alone took, over
the packed weights and the K/V cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

from harness import finish, interleave, machine, requirement

SMALL, DRAFT, TARGET = "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"
STARTS = ((SMALL, "int4"), (DRAFT, "int4"), (TARGET, "int4"), (TARGET, "int8"))
PROMPT = "def fibonacci(n):"
REPEATS = 7
PARTS = ("imports", "load", "weights", "tokenizer", "first pass", "after imports", "all")
MEMORY = 1.15

START = """
import sys, time
began, name, dtype, prompt = float(sys.argv[1]), *sys.argv[2:]
now = time.monotonic
import taslak
taslak.load
imports = now() - began

def timed(module, function):
    inner = getattr(module, function)
    def outer(*given, **named):
        start = now()
        result = inner(*given, **named)
        spent[function] = now() - start
        return result
    setattr(module, function, outer)

import json
from taslak.models import pretrained, tokenizer_files
spent = {}
timed(pretrained, "load_packed")
timed(tokenizer_files, "read_tokenizer")
loading = now()
model = taslak.load(name, dtype=dtype)
loaded = now()
model.generate(prompt, raw=True, max_tokens=1, speculate=False)
end = now()
print(json.dumps({
    "imports": imports,
    "load": loaded - loading,
    "weights": spent["load_packed"],
    "tokenizer": spent["read_tokenizer"],
    "first pass": end - loaded,
    "after imports": end - loading,
    "all": end - began,
}))
"""

PAIR = """
import json, sys
import taslak
taslak.load
from taslak.engine.usage import peak_memory
libraries = peak_memory()
target, draft, prompt = sys.argv[1:]
model = taslak.load(target, draft=draft, dtype="int4")
answer = model.generate(prompt, max_tokens=300)
used = model.statistics()
print(json.dumps({
    "libraries": libraries,
    "peak": used.peak_bytes,
    "weights": used.weight_bytes,
    "cache": used.cache_bytes,
    "tokens": len(answer.ids),
}))
"""


def start(name: str, dtype: str) -> dict[str, float]:
    """Seconds of each part of one start."""
    return _child(START, repr(time.monotonic()), name, dtype, PROMPT)


def process(*command: str) -> dict[str, float]:
    """Seconds of a whole process."""
    began = time.monotonic()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return {"all": time.monotonic() - began}


def pair_memory() -> dict[str, int]:
    """Bytes: the libraries alone, the peak, weights and cache of target and draft."""
    return _child(PAIR, TARGET, DRAFT, "Write a quicksort in Python, then explain it line by line.")


def _child(code: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    sides = {f"{name} {dtype}": partial(start, name, dtype) for name, dtype in STARTS}
    sides["taslak --help"] = partial(process, "-m", "taslak", "--help")
    sides["import torch"] = partial(process, "-c", "import torch")
    raw = interleave(sides, REPEATS)
    medians = {
        name: {part: statistics.median(run[part] for run in runs) for part in PARTS if part in runs[0]}
        for name, runs in raw.items()
    }
    memory = pair_memory()
    ratio = (memory["peak"] - memory["libraries"]) / (memory["weights"] + memory["cache"])
    narrow, wide = (medians[f"{TARGET} {dtype}"]["all"] for dtype in ("int4", "int8"))
    load, helped = medians[f"{TARGET} int4"]["load"], medians["taslak --help"]["all"]
    finish(
        __file__,
        columns=["start of", *(f"{part}, s" for part in PARTS)],
        rows=[[name, *(median.get(part) for part in PARTS)] for name, median in medians.items()],
        raw={"starts": raw, "memory": memory},
        machine={**machine(), "load": os.getloadavg()[0]},
        requirements=[
            requirement(
                "second start of the 1.5B int4 model to its first pass, s", "< 2", narrow, narrow < 2
            ),
            requirement("the same, int8, s", "< 2", wide, wide < 2),
            requirement("second load of the 1.5B int4 model, s", "< 3", load, load < 3),
            requirement("taslak --help, s", "< 0.5", helped, helped < 0.5),
            requirement(
                "peak memory of the 1.5B and 0.5B pair beyond the libraries / (weights + cache)",
                f"<= {MEMORY}",
                ratio,
                ratio <= MEMORY,
            ),
        ],
    )


if __name__ == "__main__":
    main()
