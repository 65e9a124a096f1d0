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
from taslak.models.decoder import Decoder
from taslak.models.target import chain_rows
from taslak.native import Packed

CONTEXT = 512


def measure(
    name: str, dtype: str, rows: Sequence[int], paths: Sequence[str], repeats: int, tokens: int
) -> dict[str, Any]:
    """Reading, every number of rows on every path, and plain decoding on every path, in turns.

    -> bytes a pass reads, seconds of each pass, tokens a second of plain decoding from the first token to
    the last, and seconds of reading the weights, each a list of `repeats`. What is read is the model's own
    weights: memory that lies elsewhere may be a third faster or slower.
    """
    model = taslak.load(name, dtype=dtype)
    decoder = model.target
    at, size = _weights(decoder)
    cache = decoder.allocate(CONTEXT + max(rows))
    ids = [100 + i * 7919 % 40000 for i in range(CONTEXT)]
    decoder.forward([chain_rows(cache, ids, 0)])
    cache.keep(range(CONTEXT))

    def read() -> float:
        start = time.perf_counter()
        _native.read_all(at, size)
        return time.perf_counter() - start

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
    seconds = statistics.median([each for times in reads for each in times])
    return {
        "bytes": decoder.pass_bytes,
        "limit": seconds * decoder.pass_bytes / size,
        "plain": {path: found.pop(f"{path}/plain") for path in paths},
        "seconds": found,
        "read": reads,
    }


def _weights(decoder: Decoder) -> tuple[int, int]:
    """Where the matrices that a pass reads begin, and how many bytes there are: they lie in one block."""
    packed = [w for w in decoder._layers._kept if isinstance(w, Packed)]
    first = min(w.buffer.data_ptr() for w in packed)
    size = max(w.buffer.data_ptr() + w.nbytes for w in packed) - first
    if not 0.99 < size / decoder.pass_bytes < 1.05:
        raise SystemExit(f"the weights of a pass are {decoder.pass_bytes} bytes and lie in {size}")
    return first, size
