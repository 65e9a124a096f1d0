"""What the dashboard shows: now, and the last ten minutes, a sample a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from taslak.control.monitor import BELOW, Event
from taslak.control.summary import price
from taslak.core.counts import Counts
from taslak.engine.sequence import PLAIN
from taslak.server.catalogue import Catalogue, Served

SAMPLES = 600
RECENT = 61
"""Samples that lie a minute apart at their ends."""
EVENTS = 100


@dataclass(slots=True)
class _Seen:
    """Of one model at the last sample."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    speculating: bool = True


class Live:
    """Samples a catalogue. `event` may be called from any thread, the rest from one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._started = time.time()
        self._at = time.monotonic()
        self._history: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._numbers = 0
        self._seen: dict[str, _Seen] = {}
        self._totals: dict[str, deque[dict[str, Counts]]] = {}
        self.requests = self.failed = self.prompt_tokens = self.cached_tokens = 0

    def event(self, model: str, event: Event) -> None:
        """Take in what a monitor saw: its start, or (the same one, with an end) that it is over."""
        same = (model, event.kind, event.task, event.method, event.started)
        for known in list(self._events):
            if known["same"] == same:
                known["ended"] = event.ended
                return
        self._numbers += 1
        against = "break-even" if event.kind == BELOW else "it was"
        self._events.append(
            {
                "same": same,
                "id": self._numbers,
                "time": event.started,
                "model": model,
                "task": event.task,
                "kind": "low" if event.kind == BELOW else "change",
                "message": f"acceptance rate {event.rate:.2f}, {against} {event.reference:.2f}",
                "causes": list(event.causes),
                "ended": event.ended,
            }
        )

    def sample(self) -> None:
        """Take the next sample; once a second."""
        now = time.monotonic()
        elapsed, self._at = max(now - self._at, 1e-6), now
        tokens = passes = drafted = accepted = running = waiting = 0
        needed: float | None = None
        for served in self._catalogue:
            before = self._seen.setdefault(served.name, _Seen())
            totals = served.worker.totals
            self._totals.setdefault(served.name, deque([{}], RECENT)).append(totals)
            counts = Counts.total(totals.values())
            done = _Seen(served.worker.tokens, counts.passes, counts.drafted, counts.accepted)
            if done.passes > before.passes:
                done.speculating = done.drafted > before.drafted
            else:
                done.speculating = before.speculating
            if done.drafted > before.drafted:
                needed = _break_even(served, totals)
            tokens += done.tokens - before.tokens
            passes += done.passes - before.passes
            drafted += done.drafted - before.drafted
            accepted += done.accepted - before.accepted
            running += served.worker.running
            waiting += served.worker.waiting
            self._seen[served.name] = done
        self._history.append(
            {
                "time": time.time(),
                "tokens_per_second": tokens / elapsed,
                "passes": passes,
                "drafted": drafted,
                "accepted": accepted,
                "acceptance_rate": accepted / drafted if drafted else None,
                "alpha": accepted / passes if passes else None,
                "break_even": needed,
                "running": running,
                "waiting": waiting,
            }
        )

    def speculating(self, name: str) -> bool:
        """Whether anything was drafted when the model last worked."""
        return self._seen[name].speculating if name in self._seen else True

    def recent(self, name: str) -> dict[str, tuple[float, float]]:
        """Acceptance rate and α of the last minute, by the drafters that drafted in it."""
        found = {}
        kept = self._totals.get(name)
        now, before = (kept[-1], kept[0]) if kept else ({}, {})
        for method, counts in now.items():
            old = before.get(method, Counts())
            passes, drafted = counts.passes - old.passes, counts.drafted - old.drafted
            if drafted:
                accepted = counts.accepted - old.accepted
                found[method] = accepted / drafted, accepted / passes
        return found

    def shown(self) -> dict[str, Any]:
        """All of it, for JSON."""
        settings = self._catalogue.settings
        counts = {served.name: Counts.total(served.worker.totals.values()) for served in self._catalogue}
        return {
            "version": version("taslak"),
            "time": time.time(),
            "uptime": time.time() - self._started,
            "price_per_hour": settings.price_per_hour,
            "models": [self._model(served) for served in self._catalogue],
            "running": [row for served in self._catalogue for row in _running(served)],
            "waiting": sum(served.worker.waiting for served in self._catalogue),
            "history": list(self._history),
            "depths": {name: _depths(each) for name, each in counts.items()},
            "events": [{k: v for k, v in e.items() if k != "same"} for e in list(self._events)],
            "totals": {
                "requests": self.requests,
                "failed": self.failed,
                "tokens": sum(served.worker.tokens for served in self._catalogue),
                "prompt_tokens": self.prompt_tokens,
                "cached_prompt_tokens": self.cached_tokens,
                "passes": sum(each.passes for each in counts.values()),
                "drafted": sum(each.drafted for each in counts.values()),
                "accepted": sum(each.accepted for each in counts.values()),
            },
        }

    def _model(self, served: Served) -> dict[str, Any]:
        model, prefixes = served.model, served.worker.prefixes
        return {
            "name": served.name,
            "tokens": served.worker.tokens,
            "method": model.method,
            "dtype": model.dtype,
            "verify": model.verify,
            "gamma": model.gamma,
            "draft": model.draft_name,
            "speculating": self.speculating(served.name),
            "cost_per_million_tokens": cost_per_million(served, self._catalogue.settings.price_per_hour),
            "prefix_cache": {
                "bytes": prefixes.nbytes,
                "limit": prefixes.limit,
                "hit_tokens": prefixes.hit_tokens,
            },
        }


def cost_per_million(served: Served, price_per_hour: float | None) -> float | None:
    """Of the tokens so far, for the seconds in which the model worked; None without a price or a token."""
    worker = served.worker
    if price_per_hour is None or not worker.tokens:
        return None
    return price(worker.tokens / worker.busy, price_per_hour)


def _break_even(served: Served, totals: Mapping[str, Counts]) -> float | None:
    """Of the drafter that drafted most."""
    drafters = (name for name in totals if name != PLAIN)
    most = max(drafters, key=lambda name: totals[name].drafted, default=None)
    return None if most is None else served.break_even(most)


def _running(served: Served) -> list[dict[str, Any]]:
    rows = []
    for sequence in served.worker.sequences:
        counts = sequence.counts
        rows.append(
            {
                "id": f"{id(sequence):x}"[-8:],
                "model": served.name,
                "task": sequence.request.task,
                "prompt_tokens": sequence.view.prompt_length,
                "tokens": len(sequence.accepted),
                "seconds": sequence.seconds.total,
                "acceptance_rate": counts.acceptance_rate,
                "alpha": counts.alpha,
            }
        )
    return rows


def _depths(counts: Counts) -> list[dict[str, int]]:
    return [
        {"depth": depth, "drafted": offered, "accepted": accepted}
        for depth, (offered, accepted) in enumerate(
            zip(list(counts.offered_at), list(counts.accepted_at), strict=False), start=1
        )
    ]
