"""A whole model: what a pass over some rows costs behind 512 tokens, and what plain decoding reaches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness import interleave
from prompts import PROMPTS

import taslak
from taslak import _native
from taslak.models.target import chain_rows
from taslak.native import allocate

CONTEXT = 512
READ_BYTES = 640_000_000  # more than the largest last-level caches


def measure(
    name: str, dtype: str, rows: Sequence[int], paths: Sequence[str], repeats: int, tokens: int
) -> dict[str, Any]:
    """Reading, every number of rows on every path, and plain decoding on every path, in turns.

    -> bytes a pass reads, seconds of each pass, tokens a second of plain decoding from the first token to the
    last, and bytes a second of reading, each a list of `repeats`.
    """
    model = taslak.load(name, dtype=dtype)
    decoder = model.target
    block = allocate(READ_BYTES)
    block.fill_(1)
    cache = decoder.allocate(CONTEXT + max(rows))
    ids = [100 + i * 7919 % 40000 for i in range(CONTEXT)]
    decoder.forward([chain_rows(cache, ids, 0)])
    cache.keep(range(CONTEXT))

    def read() -> float:
        start = time.perf_counter()
        _native.read_all(block.data_ptr(), READ_BYTES)
        return READ_BYTES / (time.perf_counter() - start)

    def one_pass(path: str, count: int) -> Callable[[], float]:
        def run() -> float:
            _native.use(path)
            start = time.perf_counter()
            decoder.forward([chain_rows(cache, ids[:count], count)])
            seconds = time.perf_counter() - start
            cache.crop(CONTEXT)
            return seconds

        return run

    def decode(path: str) -> Callable[[], float]:
        def run() -> float:
            _native.use(path)
            times = [
                time.perf_counter()
                for event in model.stream(PROMPTS["story"], max_tokens=tokens, speculate=False)
                if event.tokens
            ]
            return (len(times) - 1) / (times[-1] - times[0])

        return run

    sides: dict[str, Callable[[], float]] = {"read": read}
    for path in paths:
        sides |= {f"{path}/{count}": one_pass(path, count) for count in rows}
        sides[f"{path}/plain"] = decode(path)
        sides[f"read before {path}"] = read  # memory is as fast as it is at the moment
    found = interleave(sides, repeats, progress=lambda _: None)
    reads = [found.pop(side) for side in list(sides) if side.startswith("read")]
    bandwidth = statistics.median([each for times in reads for each in times])
    return {
        "bytes": decoder.pass_bytes,
        "limit": decoder.pass_bytes / bandwidth,
        "plain": {path: found.pop(f"{path}/plain") for path in paths},
        "seconds": found,
        "read": reads,
    }
