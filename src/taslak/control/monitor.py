"""Watches acceptance, and says when drafting stops paying or suddenly changes, and when that is over.

It has no clock and no files: records bring their time, events go to the log, to counters and to listeners.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from taslak.control.record import Record
from taslak.control.window import Window
from taslak.drafters.base import REGISTRY
from taslak.engine.sequence import PLAIN

log = logging.getLogger(__name__)

BELOW, CHANGE = "below break-even", "sudden change"

RECENT_DRAFTS, RECENT_REQUESTS = 200, 16
"""The recent window holds at least both, and no older request than it needs for them."""

REFERENCE_DRAFTS, REFERENCE_REQUESTS = 400, 32
"""Known from before until a change can be told from it …"""
MOST_DRAFTS, MOST_REQUESTS = 4000, 1000
"""… and the most that is remembered."""

SETTLED_DRAFTS, SETTLED_REQUESTS = 2000, 64
"""A changed acceptance that stays for so long is the usual one from then on."""

CHANGE_ERRORS = 4.5
"""Standard errors between the windows at the start of a change. Every request is a new look at windows that
mostly overlap, and requests differ more than a normal distribution's would, so it must be far out. Of 20,000
simulated requests that never change, at most 3 raised an event where their hazards differ with a standard
deviation up to 0.1, at most 23 at 0.2. A hazard that fell by 0.15 (deviation 0.1, 30 drafts a request) was
told after 13 requests, half of the time."""

LEAST_CHANGE = 0.08
"""In a token's chance to be accepted: smaller changes matter to nobody, however certain."""

BACK = 0.5
"""A change is over at this part of it: between both nothing starts and nothing ends."""

BELOW_ERRORS = 3.0
"""Standard errors under the break-even at which an event starts. It ends at the break-even itself, so a rate
that stays near it neither starts nor ends anything."""

COSTLIER = 0.05
"""Rise of the break-even itself that explains an event."""

MOST_WATCHES = 256
"""Model, task and method; those not heard of for longest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    kind:       BELOW or CHANGE
    task:       the label, "" = none, None = all tasks together
    rate:       the recent acceptance rate, at the start; of an event that is over, at its end
    reference:  the break-even, or the acceptance rate of before
    causes:     what is likely to be behind it, for a person; empty where nothing else changed
    started:    unix seconds of the record that showed it
    ended:      None = it goes on
    settled:    it ended because the new rate is now the usual one
    """

    kind: str
    model: str
    task: str | None
    method: str
    rate: float
    reference: float
    causes: tuple[str, ...]
    started: float
    ended: float | None = None
    settled: bool = False

    def __str__(self) -> str:
        task = "all tasks" if self.task is None else f"task {self.task}" if self.task else "no task named"
        what = f"{self.kind} of {self.method} on {self.model}, {task}: acceptance rate {self.rate:.2f}"
        if self.ended is not None:
            how = "the usual one now" if self.settled else "over"
            return f"{what}, {how} after {self.ended - self.started:.0f} s"
        against = f"break-even {self.reference:.2f}" if self.kind == BELOW else f"it was {self.reference:.2f}"
        causes = "; ".join(self.causes) or "nothing else that is watched has changed, so the text itself"
        return f"{what}, {against}. Likely cause: {causes}"


Listener = Callable[[Event], object]


class Monitor:
    """Acceptance by model, task and method, weighted by drafts.

    break_even:  of a model and a method, the acceptance rate from which on drafting pays; None = unknown
    listeners:   called with every event twice, at its start and (`ended` set) at its end; what they raise is
                 logged

    Of one thread; `open_events` and `counts` may be read from others.
    """

    def __init__(
        self, break_even: Callable[[str, str], float | None], listeners: Sequence[Listener] = ()
    ) -> None:
        self.listeners = list(listeners)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """Events that started, by (kind, model, method)."""
        self._break_even = break_even
        self._watches: OrderedDict[tuple[str, str | None, str], _Watch] = OrderedDict()
        self._open: dict[tuple[str, str, str | None, str], Event] = {}

    @property
    def open_events(self) -> tuple[Event, ...]:
        """Those that go on, the oldest first."""
        return tuple(self._open.values())

    def record(self, record: Record) -> None:
        """Take in what a method did in a request that ended; in the order of their ends."""
        for watch in self._taken(record):
            if watch.task is not None:
                self._judge_break_even(watch, record)
            self._judge_change(watch, record)

    def learn(self, records: Iterable[Record]) -> None:
        """Take in earlier ones, as a history holds them; nothing is raised for what is long over."""
        for record in records:
            for watch in self._taken(record):
                least = self._break_even(record.model, record.method)
                if least is not None and watch.ready and watch.recent.rate >= least:
                    watch.paid_at = least

    def _taken(self, record: Record) -> Iterable[_Watch]:
        """The watches it came into. What was rolled up says nothing about single requests."""
        if record.method == PLAIN or not record.counts.drafted or record.requests != 1:
            return
        for task in (record.task, None):
            key = (record.model, task, record.method)
            if key not in self._watches:
                self._forget()
                self._watches[key] = _Watch(task)
            self._watches.move_to_end(key)
            self._watches[key].take(record)
            yield self._watches[key]

    def _forget(self) -> None:
        """Make room for one more watch."""
        if len(self._watches) >= MOST_WATCHES:
            busy = {(model, task, method) for _, model, task, method in self._open}
            idle = next((key for key in self._watches if key not in busy), None)
            if idle is not None:
                del self._watches[idle]

    def _judge_break_even(self, watch: _Watch, record: Record) -> None:
        recent = watch.recent
        least = self._break_even(record.model, record.method)
        if least is None or not watch.ready:
            return
        if recent.rate >= least:
            watch.paid_at = least
            self._end(BELOW, watch, record)
        elif recent.rate + BELOW_ERRORS * recent.rate_error < least:
            self._start(BELOW, watch, record, least, watch.causes(record.method, least))

    def _judge_change(self, watch: _Watch, record: Record) -> None:
        recent, reference = watch.recent, watch.reference
        if not watch.ready or len(reference) < REFERENCE_REQUESTS or reference.drafts < REFERENCE_DRAFTS:
            return
        change, error = recent.shift(reference)
        if watch.settling is not None:
            if abs(change) < BACK * LEAST_CHANGE:
                watch.settling = None
                self._end(CHANGE, watch, record)
            elif watch.settled:
                watch.reference, watch.settling = watch.settling, None
                self._end(CHANGE, watch, record, settled=True)
        elif abs(change) >= max(LEAST_CHANGE, CHANGE_ERRORS * error):
            # of all tasks only a changed mix is told: the rest each task tells by itself
            causes = tuple(recent.differences(reference))
            if watch.task is None and not any(cause.startswith("task:") for cause in causes):
                return
            watch.settling = Window()
            self._start(CHANGE, watch, record, reference.rate, causes)

    def _start(
        self, kind: str, watch: _Watch, record: Record, reference: float, causes: tuple[str, ...]
    ) -> None:
        key = (kind, record.model, watch.task, record.method)
        if key in self._open:
            return
        event = Event(
            *(kind, record.model, watch.task, record.method),
            *(watch.recent.rate, reference, causes, record.ended),
        )
        self._open[key] = event
        self.counts[kind, record.model, record.method] += 1
        log.warning("%s", event)
        self._tell(event)

    def _end(self, kind: str, watch: _Watch, record: Record, settled: bool = False) -> None:
        event = self._open.pop((kind, record.model, watch.task, record.method), None)
        if event is not None:
            event = replace(event, rate=watch.recent.rate, ended=record.ended, settled=settled)
            log.info("%s", event)
            self._tell(event)

    def _tell(self, event: Event) -> None:
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # theirs, not the answer's
                log.exception("a listener failed on %s", event)


class _Watch:
    """One model's, task's and method's windows.

    settling:  records since a change, out of the recent window again; None while there is none
    paid_at:   the break-even when the rate last was above it; None = it never was
    """

    def __init__(self, task: str | None) -> None:
        self.task = task
        self.recent = Window()
        self.reference = Window()
        self.settling: Window | None = None
        self.paid_at: float | None = None

    @property
    def ready(self) -> bool:
        """Whether enough came to speak of a rate."""
        return len(self.recent) >= RECENT_REQUESTS and self.recent.drafts >= RECENT_DRAFTS

    @property
    def settled(self) -> bool:
        """Whether what came since a change is enough for a reference, and of one kind with the recent."""
        since = self.settling
        if since is None or since.drafts < SETTLED_DRAFTS or len(since) < SETTLED_REQUESTS:
            return False
        return abs(self.recent.shift(since)[0]) < LEAST_CHANGE

    def take(self, record: Record) -> None:
        """Into the recent window; what it has no more need of becomes the past."""
        recent = self.recent
        recent.push(record)
        while (
            len(recent) > RECENT_REQUESTS
            and recent.drafts - recent.records[0].counts.offered_at[0] >= RECENT_DRAFTS
        ):
            past = self.reference if self.settling is None else self.settling
            past.push(recent.pop())
            while len(past) > 1 and (past.drafts > MOST_DRAFTS or len(past) > MOST_REQUESTS):
                past.pop()

    def causes(self, method: str, break_even: float) -> tuple[str, ...]:
        """Why the rate is under the break-even."""
        if self.paid_at is None:
            why = "the drafter is of another family, or was trained for another model"
            if method in REGISTRY and REGISTRY[method].looks_up:
                why = "the answers repeat little of the prompt and of themselves"
            return (f"it was low from the start: {why}",)
        found = list(self.recent.differences(self.reference)) if len(self.reference) else []
        if break_even >= self.paid_at + COSTLIER:
            found.append(f"the break-even: {self.paid_at:.2f} before, {break_even:.2f} now")
        return tuple(found)
