"""Records of requests that never ran."""

from __future__ import annotations

from typing import Any

from taslak.control.record import Record
from taslak.core.counts import Counts
from taslak.engine.sequence import Seconds


def counts(lengths: list[int], depth: int = 4) -> Counts:
    """Of linear drafts so deep, so many tokens of each accepted; every pass adds one of its own."""
    offered = [sum(length >= above for length in lengths) for above in range(depth)]
    accepted = [sum(length > above for length in lengths) for above in range(depth)]
    reached = sum(offer > 0 for offer in offered)
    drafted = depth * len(lengths)
    return Counts(
        *(len(lengths), drafted, drafted, sum(lengths), len(lengths), offered[:reached], accepted[:reached])
    )


def record(ended: float = 1.8e9, lengths: list[int] | None = None, depth: int = 4, **other: Any) -> Record:
    """One with something in every field. depth: of its drafts."""
    counted = counts([0, 1, 4, 2] if lengths is None else lengths, depth)
    fields: dict[str, Any] = {
        "model": "m",
        "method": "ngram",
        "verify": "coupled",
        "gamma": depth,
        "task": "",
        "temperature": 0.0,
        "prompt_tokens": 30,
        "tokens": counted.emitted,
        "seconds": Seconds(0.25, 1.0, 0.5),
        "speedup": 1.5,
        "draft_bytes": 1000,
        "request": f"{ended}",
    }
    return Record(ended=ended, counts=counted, **{**fields, **other})
