"""Which sequences run: admission by memory, first come first served, until each has its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace

from taslak.engine.sequence import Event, Request, Sequence
from taslak.engine.step import Engine
from taslak.engine.text import Decodes
from taslak.errors import MemoryLimitError

MAX_RUNNING = 64
"""Sequences sharing a pass; more wait."""


class Scheduler:
    """Admits requests and steps the running ones. One per call of generate, or one for a whole server."""

    def __init__(self, engine: Engine, tokenizer: Decodes, max_running: int = MAX_RUNNING) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_running = max_running
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, Sequence] = {}
        self._next = 0

    def add(self, request: Request) -> int:
        """Queue a request; the number its events carry. Raises PromptError, OptionError."""
        target = self._engine.target
        request.check(target.vocab_size, target.context)
        # the end-of-text ids are what min_tokens holds back
        request = replace(request, sampling=replace(request.sampling, eos=tuple(request.eos)))
        self._next += 1
        self._waiting.append((self._next - 1, request))
        return self._next - 1

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

        Raises MemoryLimitError when a request doesn't even fit alone.
        """
        self._admit()
        self._engine.step(list(self._running.values()))
        events = []
        for number, sequence in list(self._running.items()):
            event = sequence.event()
            if event.tokens or event.answer:
                events.append((number, event))
            if sequence.finish is not None:
                self.cancel(number)
        return events

    def cancel(self, number: int) -> None:
        """Stop a running request and free its memory."""
        self._engine.forget(self._running.pop(number))

    def _admit(self) -> None:
        target, policy = self._engine.target, self._engine.policy
        while self._waiting and len(self._running) < self._max_running:
            number, request = self._waiting[0]
            most = target.context if request.max_tokens is None else len(request.prompt) + request.max_tokens
            try:
                cache = target.allocate(min(most, target.context) + policy.max_nodes)
            except MemoryLimitError:
                if not self._running:
                    self._waiting.popleft()
                    raise
                return
            self._waiting.popleft()
            self._running[number] = Sequence(request, cache, self._tokenizer, target.context)
