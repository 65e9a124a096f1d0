"""Records added up by what a person asks about: method, task, temperature, context, model, day; by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taslak.control.record import (
    CONTEXTS,
    TEMPERATURES,
    Record,
    context_band,
    day_of,
    mean_speedup,
    temperature_band,
)
from taslak.core.counts import Counts
from taslak.engine.sequence import Seconds
from taslak.errors import OptionError

KEYS: dict[str, Callable[[Record], str]] = {
    "method": lambda record: record.method,
    "task": lambda record: record.task,
    "temperature": lambda record: temperature_band(record.temperature),
    "context": lambda record: context_band(record.context),
    "model": lambda record: record.model,
    "day": lambda record: day_of(record.ended),
}
"""What records can be grouped by."""

_BANDS = {
    "temperature": [temperature_band(t) for t in (0.0, *TEMPERATURES, TEMPERATURES[-1] + 1)],
    "context": [context_band(n) for n in (*CONTEXTS, CONTEXTS[-1] + 1)],
}


def price(tokens_per_second: float, per_hour: float) -> float:
    """Of a million tokens, on a machine that costs so much an hour."""
    return per_hour / 3600.0 / tokens_per_second * 1e6


@dataclass(slots=True)
class Summary:
    """A group of records.

    key:          what they have in common
    requests:     how many; of those rolled up, a request counts once a method
    speedup:      see `mean_speedup`
    draft_bytes:  the most of any record
    """

    key: str
    requests: int = 0
    tokens: int = 0
    counts: Counts = field(default_factory=Counts)
    seconds: Seconds = field(default_factory=Seconds)
    speedup: float | None = None
    draft_bytes: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """Prefill included; None where no time was taken."""
        return self.tokens / self.seconds.total if self.seconds.total else None

    def cost(self, price_per_hour: float) -> float | None:
        """Of a million tokens on a machine of this price, while it decodes; None where none were timed."""
        rate = self.tokens_per_second
        return price(rate, price_per_hour) if rate else None

    def plain_cost(self, price_per_hour: float) -> float | None:
        """What they would have cost without speculation; None where the speed-up isn't known."""
        cost = self.cost(price_per_hour)
        return None if cost is None or self.speedup is None else cost * self.speedup

    def as_json(self, price_per_hour: float | None = None) -> dict[str, Any]:
        """Everything, for a program to read; rates are null where nothing was drafted."""
        counts, seconds = self.counts, self.seconds
        told = {
            "key": self.key,
            "requests": self.requests,
            "tokens": self.tokens,
            "passes": counts.passes,
            "drafted": counts.drafted,
            "nodes": counts.nodes,
            "accepted": counts.accepted,
            "acceptance_rate": counts.acceptance_rate,
            "node_rate": counts.node_rate,
            "alpha": counts.alpha,
            "tau": counts.tau,
            "theoretical_speedup": counts.theoretical_speedup,
            "hazards": counts.hazards,
            "seconds": {"draft": seconds.draft, "pass": seconds.pass_, "other": seconds.other},
            "tokens_per_second": self.tokens_per_second,
            "speedup": self.speedup,
            "draft_bytes": self.draft_bytes,
        }
        if price_per_hour is not None:
            told["cost_per_million_tokens"] = self.cost(price_per_hour)
            told["plain_cost_per_million_tokens"] = self.plain_cost(price_per_hour)
        return told


def group(records: Iterable[Record], by: str) -> dict[str, list[Record]]:
    """The records by a key of KEYS: bands and days in their order, others by tokens, most first.

    Raises OptionError for another `by`.
    """
    if by not in KEYS:
        raise OptionError(f"by is {by!r}; expected one of {', '.join(KEYS)}")
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(KEYS[by](record), []).append(record)
    if by == "day":
        return dict(sorted(groups.items()))
    if by in _BANDS:
        return {band: groups[band] for band in _BANDS[by] if band in groups}
    return dict(sorted(groups.items(), key=lambda item: (-sum(r.tokens for r in item[1]), item[0])))


def add_up(key: str, records: Sequence[Record]) -> Summary:
    """All the records in one."""
    whole = Summary(key, speedup=mean_speedup(records))
    seen = set()
    for record in records:
        if record.request not in seen:
            whole.requests += record.requests
        if record.request:
            seen.add(record.request)
        whole.tokens += record.tokens
        whole.counts.add(record.counts)
        whole.seconds.add(record.seconds)
        whole.draft_bytes = max(whole.draft_bytes, record.draft_bytes)
    return whole


def over_time(records: Iterable[Record], start: float, end: float, parts: int) -> list[Counts]:
    """The counts of equal stretches from `start` to `end`, unix seconds, both included."""
    stretches = [Counts() for _ in range(parts)]
    for record in records:
        if start <= record.ended <= end:
            at = int((record.ended - start) / (end - start) * parts) if end > start else 0
            stretches[min(at, parts - 1)].add(record.counts)
    return stretches
