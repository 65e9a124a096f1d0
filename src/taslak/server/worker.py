"""The engine thread of one model: takes requests from any thread, steps them together, hands events on.

Knows nothing about HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from taslak.core.counts import Counts
from taslak.engine.language_model import LanguageModel
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Event, Request
from taslak.engine.sequence import Sequence as Running
from taslak.errors import TaslakError

log = logging.getLogger(__name__)


class Busy(TaslakError):
    """The queue is full. retry_after: seconds until there may be room."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests are waiting, which is the most this server takes; try again")
        self.retry_after = retry_after


class Closed(TaslakError):
    """The server is shutting down."""


class Broken(TaslakError):
    """The engine thread has ended by a fault of its own."""


class TimedOut(TaslakError):
    """A request took longer than it may."""


Receive = Callable[[Event | TaslakError], None]
"""Called from the engine thread with every event of a job, `index` = which of its requests; with an error
when it ends without answers."""


@dataclass(slots=True, eq=False)
class Job:
    """Requests that were sent together.

    started:      seconds of `monotonic`, as the next two
    first, ended: by request, when its first token and its answer came
    """

    requests: Sequence[Request]
    receive: Receive
    started: float
    deadline: float | None
    first: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """The scheduler's number of each, and which one it is."""
    scheduler: Scheduler | None = None
    cancelled: bool = False


Finished = Callable[[Job, int, Answer], None]
"""Told of every answer: to which of a job's requests."""


class Worker:
    """Runs one model until it is closed.

    max_running, max_waiting: as in Settings
    timeout:      seconds for a request; None = no bound
    prefix_bytes: see PrefixCache
    finished:     told of every answer, from the engine thread
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_running: int = 64,
        max_waiting: int = 256,
        timeout: float | None = None,
        prefix_bytes: int = 0,
        finished: Finished | None = None,
    ) -> None:
        self.model = model
        self._prefix_bytes = prefix_bytes
        self.prefixes = model.reuse_prefixes(prefix_bytes)
        self.tokens = 0
        """Emitted so far."""
        self.busy = 0.0
        """Seconds spent in steps so far."""
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._finished = finished
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._changing: list[Future[None]] = []
        self._unseen: dict[Job, None] = {}  # handed over, and not in the scheduler yet
        self._jobs: dict[tuple[Scheduler, int], Job] = {}
        self._models = {self._scheduler(model): model}
        self._past: dict[str, Counts] = {}
        self._closing = self._dropping = False
        self._fault: TaslakError | None = None
        self._seconds = 1.0  # that an answer takes of late
        self._thread = threading.Thread(target=self._run, name=f"taslak {model.name}", daemon=True)
        self._thread.start()

    def check(self, request: Request) -> None:
        """Raise the UserErrors of `Scheduler.check`. From any thread."""
        self._newest.check(request)

    def submit(self, requests: Sequence[Request], receive: Receive) -> Job:
        """Queue requests that were checked. Raises Busy where too many wait, Closed during shutdown."""
        now = monotonic()
        job = Job(requests, receive, now, None if self._timeout is None else now + self._timeout)
        with self._changed:
            if self._fault is not None:
                raise self._fault
            if self._closing:
                raise Closed("the server is shutting down")
            waiting = self.waiting
            if self.running + waiting + len(requests) > self._max_running + self._max_waiting:
                raise Busy(waiting, max(1, round(self._seconds * waiting / self._max_running)))
            self._unseen[job] = None
            self._commands.append(lambda: self._add(job))
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """End a job before the next pass and free its memory. Harmless for one that is over."""
        self._command(lambda: self._end(job))

    @property
    def totals(self) -> dict[str, Counts]:
        """What all passes so far came to, by drafter, also of models that were replaced."""
        with self._changed:
            return self._added(list(self._models.values()), self._past)

    @staticmethod
    def _added(models: Sequence[LanguageModel], past: Mapping[str, Counts]) -> dict[str, Counts]:
        """Those of some models, and of others before them. New objects, whatever goes on."""
        totals: dict[str, Counts] = {}
        for found in (past, *(model.engine.totals for model in models)):
            for name, counts in list(found.items()):
                totals.setdefault(name, Counts()).add(counts)
        return totals

    @property
    def open(self) -> bool:
        """Whether it takes requests."""
        return self._fault is None and not self._closing

    def replace(self, model: LanguageModel, prepare: Callable[[], None] | None = None) -> Future[None]:
        """Answer new requests with another model of the same target; those that run end as they began.
        prepare: what is to be done between two passes before; what it raises is the future's, and nothing
        has changed then. Raises Closed during shutdown."""
        done: Future[None] = Future()

        def swap() -> None:
            try:
                if prepare is not None:
                    prepare()
                model.reuse_prefixes(self._prefix_bytes)  # its draft model's; the target and its own stay
            except Exception as error:
                done.set_exception(error)
                return
            self._models[self._scheduler(model)] = model
            self.model = model
            done.set_result(None)

        with self._changed:
            if not self.open:
                raise Closed("the server is shutting down")
            self._changing.append(done)
            self._commands.append(swap)
            self._changed.notify()
        return done

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Take nothing new; end what runs (drain) or drop it. Whether that was done in time, seconds."""
        with self._changed:
            self._closing = True
            self._dropping = self._dropping or not drain
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs; it ends with `close`, or with a fault of its own."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Sequences that have not been admitted yet."""
        unseen = sum(len(job.requests) for job in list(self._unseen))
        return unseen + sum(scheduler.waiting for scheduler in list(self._models))

    @property
    def running(self) -> int:
        """Sequences that share the passes."""
        return sum(len(scheduler.running) for scheduler in list(self._models))

    @property
    def sequences(self) -> list[Running]:
        """Those that run; of another thread, to be read alone."""
        return [sequence for s in list(self._models) for sequence in list(s.running.values())]

    @property
    def _newest(self) -> Scheduler:
        return next(reversed(self._models))

    def _scheduler(self, model: LanguageModel) -> Scheduler:
        return Scheduler(
            model.engine,
            model.tokenizer,
            self._max_running,
            model.listeners,
            prefixes=self.prefixes if self.prefixes.limit else None,
            isolate=True,
        )

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def _run(self) -> None:
        fault: TaslakError = Closed("the server is shutting down")
        try:
            self._serve()
        except BaseException as error:  # whatever it is, nobody may wait for ever
            log.critical("the engine of %s has ended", self.model.name, exc_info=True)
            fault = Broken(f"the engine has failed ({type(error).__name__})")
        with self._changed:
            self._fault = fault
            self._commands.clear()
        for job in [*dict.fromkeys(self._jobs.values()), *self._unseen]:
            self._hand(job, fault)
        for change in self._changing:
            if not change.done():
                change.set_exception(Closed("the server is shutting down"))

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (self._commands or self._jobs or self._closing or len(self._models) > 1):
                    self._changed.wait()
                commands, self._commands = self._commands, deque()
                closing, dropping = self._closing, self._dropping
            for command in commands:
                command()
            if dropping:
                for job in list(dict.fromkeys(self._jobs.values())):
                    self._end(job, Closed("the server is shutting down"))
            if closing and not self._jobs:
                self.prefixes.clear()
                return
            self._expire()
            for scheduler in list(self._models):
                self._step(scheduler)

    def _step(self, scheduler: Scheduler) -> None:
        if not scheduler.running and not scheduler.waiting:
            if self._models[scheduler] is not self.model:  # only its counts are kept
                with self._changed:  # whoever asks for totals meanwhile sees neither both nor none
                    self._past = self._added([self._models[scheduler]], self._past)
                    del self._models[scheduler]
            return
        started = monotonic()
        events = scheduler.step()
        self.busy += monotonic() - started
        for number, event in events:
            job = self._jobs.get((scheduler, number))
            if job is None:  # ended by an event before this one
                continue
            index = job.numbers[number]
            if event.tokens:
                self.tokens += len(event.tokens)
                job.first.setdefault(index, monotonic())
            if event.answer is not None:
                del self._jobs[scheduler, number]
                job.ended[index] = monotonic()
                self._seconds += 0.1 * (job.ended[index] - job.started - self._seconds)
                self._told(job, index, event.answer)
            self._hand(job, replace(event, index=index))

    def _add(self, job: Job) -> None:
        with self._changed:
            del self._unseen[job]
        if job.cancelled:
            return
        job.scheduler = scheduler = self._newest
        try:
            for index, request in enumerate(job.requests):
                number = scheduler.add(request)
                job.numbers[number] = index
                self._jobs[scheduler, number] = job
        except Exception as error:  # it was checked: only a drafter that was replaced since can be missing
            self._end(job, error if isinstance(error, TaslakError) else TaslakError(str(error)))

    def _end(self, job: Job, error: TaslakError | None = None) -> None:
        job.cancelled = True
        for number in job.numbers:
            assert job.scheduler is not None
            if self._jobs.pop((job.scheduler, number), None) is not None:
                job.scheduler.cancel(number)
        if error is not None:
            self._hand(job, error)

    def _expire(self) -> None:
        now = monotonic()
        for job in list(dict.fromkeys(self._jobs.values())):
            if job.deadline is not None and now > job.deadline:
                self._end(job, TimedOut(f"the answer took longer than the {self._timeout:g} s it may take"))

    def _told(self, job: Job, index: int, answer: Answer) -> None:
        if self._finished is not None:
            try:
                self._finished(job, index, answer)
            except Exception:
                log.exception("an answer could not be counted")

    def _hand(self, job: Job, what: Event | TaslakError) -> None:
        try:
            job.receive(what)
        except Exception:  # whoever asked is gone; the others' answers go on
            log.debug("an event could not be handed on", exc_info=True)
            if not job.cancelled:
                self._end(job)


def on_loop(loop: Any, put: Callable[[Event | TaslakError], None]) -> Receive:
    """A Receive for code that runs on an asyncio loop."""
    return lambda what: loop.call_soon_threadsafe(put, what)
