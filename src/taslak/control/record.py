"""What is kept of a request, the bands it is grouped by, and how old records become one.

Knows nothing about files.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from taslak.core.counts import Counts
from taslak.core.sampling import GREEDY_BELOW
from taslak.engine.sequence import Seconds

TEMPERATURES = (0.5, 0.8, 1.0)
CONTEXTS = tuple(4**power for power in range(3, 9))
"""Upper ends of the bands; 64 to 65,536 tokens."""

OTHERS = "(others)"
"""The task of records so old that their tasks are no longer told apart."""

REQUEST, DAY, MONTH = 0, 1, 2
"""How much one stored record stands for."""


def temperature_band(temperature: float) -> str:
    """ "greedy", "≤ 0.5", "≤ 0.8", "≤ 1.0" or "> 1.0"."""
    if temperature < GREEDY_BELOW:
        return "greedy"
    band = bisect_left(TEMPERATURES, temperature)
    return f"≤ {TEMPERATURES[band]}" if band < len(TEMPERATURES) else f"> {TEMPERATURES[-1]}"


def context_band(tokens: int) -> str:
    """ "≤ 64", "≤ 256", … by powers of four, "> 65536"."""
    band = bisect_left(CONTEXTS, tokens)
    return f"≤ {CONTEXTS[band]}" if band < len(CONTEXTS) else f"> {CONTEXTS[-1]}"


def day_of(ended: float) -> str:
    """The day a time falls on, in UTC: "2026-11-01"."""
    return time.strftime("%Y-%m-%d", time.gmtime(ended))


@dataclass(frozen=True, slots=True)
class Record:
    """What one drafting method did in one request: a request has one record a method that worked in it.

    ended:          unix seconds
    model:          the target's name
    method:         the drafting method's name; "plain" for passes in which nothing was to be drafted
    verify:         the rule of verification
    gamma:          drafted depth; None = chosen from pass to pass
    task:           the user's label, "" = none
    prompt_tokens:  of the request
    tokens:         of the answer, those that this method's passes gave
    counts:         of this method's passes
    seconds:        of these passes. Of steps shared with other requests, the part that falls to this one:
                    seconds of records are added up to what a machine was busy with
    speedup:        plain decoding's estimated time over the time taken; None = unknown
    draft_bytes:    memory that drafting takes beyond the target's
    request:        the same for all records of a request; "" in a record that stands for many
    requests:       how many it stands for. Then `ended` is the latest, `temperature` the mean, tokens and
                    seconds are sums, `draft_bytes` is the most
    """

    ended: float
    model: str
    method: str
    verify: str
    gamma: int | None
    task: str
    temperature: float
    prompt_tokens: int
    tokens: int
    counts: Counts
    seconds: Seconds
    speedup: float | None = None
    draft_bytes: int = 0
    request: str = ""
    requests: int = 1

    @property
    def context(self) -> int:
        """Tokens of prompt and answer; of many requests the mean."""
        return round((self.prompt_tokens + self.tokens) / self.requests)

    def merge_key(self, level: int) -> tuple[Any, ...]:
        """Records with the same key become one, at level DAY or MONTH. A record whose speed-up is unknown is
        kept from those with one, for the mean of them to be weighted by their seconds."""
        month = level == MONTH
        return (
            day_of(self.ended)[: 7 if month else 10],
            self.model,
            self.method,
            self.verify,
            OTHERS if month else self.task,
            temperature_band(self.temperature),
            context_band(self.context),
            self.speedup is None,
        )


def merge(records: Iterable[Record], level: int) -> list[Record]:
    """The records, those of one key added up. Nothing that is counted gets lost."""
    merged: dict[tuple[Any, ...], Record] = {}
    for record in records:
        key = record.merge_key(level)
        into = merged.get(key)
        if into is None:
            counts, seconds = Counts(), Seconds()
            counts.add(record.counts)
            seconds.add(record.seconds)
            merged[key] = replace(
                record,
                request="",
                task=OTHERS if level == MONTH else record.task,
                counts=counts,
                seconds=seconds,
            )
        else:
            merged[key] = _sum(into, record)
    return list(merged.values())


def _sum(one: Record, other: Record) -> Record:
    """Both in one; the counts and seconds of `one` are used up."""
    speedup = mean_speedup([one, other])  # None also where neither took any time
    one.counts.add(other.counts)
    one.seconds.add(other.seconds)
    requests = one.requests + other.requests
    low, high = sorted((one.temperature, other.temperature))
    mean = (one.temperature * one.requests + other.temperature * other.requests) / requests
    return replace(
        one,
        ended=max(one.ended, other.ended),
        gamma=one.gamma if one.gamma == other.gamma else None,
        temperature=min(max(mean, low), high),  # rounding must not carry it out of its band
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        tokens=one.tokens + other.tokens,
        speedup=one.speedup if speedup is None else speedup,
        draft_bytes=max(one.draft_bytes, other.draft_bytes),
        requests=requests,
    )


def mean_speedup(records: Iterable[Record]) -> float | None:
    """The time plain decoding would have taken for all of them over the time they took; None where no
    record knows. A mean over tokens would let the quick answers count for more time than they took."""
    plain = taken = 0.0
    for record in records:
        if record.speedup is not None:
            plain += record.speedup * record.seconds.total
            taken += record.seconds.total
    return plain / taken if taken else None
