"""Which sequences run: admission by memory, first come first served, until each has its answer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable

from taslak.engine.sequence import Answer, Event, Request, Sequence
from taslak.engine.step import Engine
from taslak.engine.text import Decodes
from taslak.errors import MemoryLimitError

log = logging.getLogger(__name__)

Listener = Callable[[Request, Answer], None]

MAX_RUNNING = 64
"""Sequences sharing a pass; more wait."""


class Scheduler:
    """Admits requests and steps the running ones. One per call of generate, or one for a whole server."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Decodes,
        max_running: int = MAX_RUNNING,
        listeners: Iterable[Listener] = (),
    ) -> None:
        """listeners: told of every finished answer. What they raise is logged and goes no further."""
        self._listeners = tuple(listeners)
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_running = max_running
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, Sequence] = {}
        self._next = 0

    def add(self, request: Request) -> int:
        """Queue a request; the number its events carry. Raises PromptError, OptionError, and MemoryLimitError
        for one that would not fit into the cache even alone."""
        target = self._engine.target
        request.check(target.vocab_size, target.context)
        need, limit = self._positions(request), target.cache_limit
        if limit is not None and need > limit:
            raise MemoryLimitError(
                f"prompt and answer need {need} cache positions and memory gives {limit}; "
                "use a shorter prompt or a lower max_tokens"
            )
        self._next += 1
        self._waiting.append((self._next - 1, request))
        return self._next - 1

    def _positions(self, request: Request) -> int:
        """Cache positions the request may need, its drafts included."""
        return request.positions(self._engine.target.context) + self._engine.policy.max_nodes

    def run(self) -> Generator[tuple[int, Event], None, None]:
        """Step until nothing is left. Closing the iterator frees what is still running."""
        try:
            while self._waiting or self._running:
                yield from self.step()
        finally:
            for number in list(self._running):
                self.cancel(number)
            self._waiting.clear()

    def step(self) -> list[tuple[int, Event]]:
        """Admit what fits, advance all running sequences by one pass. Events of those that got tokens.

        Raises MemoryLimitError when not even one request can be given its memory.
        """
        self._admit()
        if not self._running:
            return []
        self._engine.step(list(self._running.values()))
        events = []
        for number, sequence in list(self._running.items()):
            event = sequence.event()
            if event.tokens or event.answer:
                events.append((number, event))
            if event.answer is not None:
                self._tell(sequence.request, event.answer)
                self.cancel(number)
        return events

    def _tell(self, request: Request, answer: Answer) -> None:
        for listener in self._listeners:
            try:
                listener(request, answer)
            except Exception:
                log.warning("a listener failed; the answer is unaffected", exc_info=True)

    def cancel(self, number: int) -> None:
        """Stop a request, running or waiting, and free its memory. Harmless for one that is over."""
        if number in self._running:
            self._engine.forget(self._running.pop(number))
        self._waiting = deque(entry for entry in self._waiting if entry[0] != number)

    def _admit(self) -> None:
        target = self._engine.target
        while self._waiting and len(self._running) < self._max_running:
            number, request = self._waiting[0]
            try:
                cache = target.allocate(self._positions(request))
            except MemoryLimitError:
                if not self._running:
                    self._waiting.popleft()
                    raise
                return
            self._waiting.popleft()
            try:
                self._running[number] = Sequence(request, cache, self._tokenizer, target.context)
            except BaseException:
                cache.release()
                raise
