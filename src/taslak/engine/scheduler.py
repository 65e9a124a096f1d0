"""Which sequences run: admission by memory, first come first served, until each has its answer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping

from taslak.engine.sequence import Answer, Event, Request, Sequence, refused
from taslak.engine.step import Engine
from taslak.engine.text import Decodes
from taslak.errors import MemoryLimitError
from taslak.models.cache import Block
from taslak.models.prefix import PrefixCache

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
        prefixes: PrefixCache | None = None,
        isolate: bool = False,
    ) -> None:
        """listeners: told of every finished answer. What they raise is logged and goes no further
        prefixes:  where beginnings of prompts are found and left
        isolate:   a step that fails ends the requests that fail alone too, with an error, and is not raised
        """
        self._prefixes = prefixes
        self._isolate = isolate
        self._left: set[int] = set()
        self._listeners = tuple(listeners)
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_running = max_running
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, Sequence] = {}
        self._next = 0

    def check(self, request: Request) -> None:
        """Raise PromptError or OptionError for what no answer can be made from, MemoryLimitError for what
        would not fit into the cache even alone. From any thread."""
        self._engine.check(request)
        need, limit = self._positions(request), self._engine.target.cache_limit
        if limit is not None and need > limit:
            raise MemoryLimitError(
                f"prompt and answer need {need} cache positions and memory gives {limit}; "
                "use a shorter prompt or a lower max_tokens"
            )

    def add(self, request: Request) -> int:
        """Queue a request; the number its events carry. Raises what `check` raises."""
        self.check(request)
        self._next += 1
        self._waiting.append((self._next - 1, request))
        return self._next - 1

    def _positions(self, request: Request) -> int:
        """Cache positions the request may need, its drafts included."""
        return request.positions(self._engine.target.context) + self._engine.max_nodes(request)

    @property
    def running(self) -> Mapping[int, Sequence]:
        """By number. Not to be changed."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that have not been admitted yet."""
        return len(self._waiting)

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

        Raises MemoryLimitError when not even one request can be given its memory, unless they are isolated.
        """
        events = self._admit()
        if not self._running:
            return events
        self._advance(list(self._running.values()))
        for number, sequence in list(self._running.items()):
            event = sequence.event()
            if event.tokens or event.answer:
                events.append((number, event))
            if self._prefixes is not None and sequence.accepted and number not in self._left:
                self._left.add(number)  # whoever shares the prompt needn't wait for the answer's end
                if sequence.finish != "error":
                    self._prefixes.keep(sequence.tokens, sequence.cache)
            if event.answer is not None:
                self._tell(sequence.request, event.answer)
                self.cancel(number)
        return events

    def _advance(self, sequences: list[Sequence]) -> None:
        """One step. Where it fails as a whole and requests are not to fail together, each is stepped alone:
        what had been run is dropped, what had been committed stands."""
        try:
            self._engine.step(sequences)
        except Exception:
            if not self._isolate:
                raise
            log.exception("a step failed; its requests are stepped one by one")
            for sequence in sequences:
                if sequence.finish is None:
                    self._alone(sequence)

    def _alone(self, sequence: Sequence) -> None:
        try:
            self._engine.step([sequence])
        except Exception as error:
            log.exception("a request failed")
            sequence.fail(f"the model's pass failed: {type(error).__name__}")

    def _tell(self, request: Request, answer: Answer) -> None:
        for listener in self._listeners:
            try:
                listener(request, answer)
            except Exception:
                log.warning("a listener failed; the answer is unaffected", exc_info=True)

    def cancel(self, number: int) -> None:
        """Stop a request, running or waiting, and free its memory. Harmless for one that is over."""
        if number in self._running:
            sequence = self._running.pop(number)
            self._left.discard(number)
            if self._prefixes is not None and sequence.finish != "error":
                self._prefixes.keep(sequence.tokens, sequence.cache)
            self._engine.forget(sequence)
        self._waiting = deque(entry for entry in self._waiting if entry[0] != number)

    def _admit(self) -> list[tuple[int, Event]]:
        """Let in what fits; the events of those that never will."""
        events: list[tuple[int, Event]] = []
        while self._waiting and len(self._running) < self._max_running:
            number, request = self._waiting[0]
            try:
                cache = self._room(request)
                if cache is None:
                    break
                self._running[number] = self._sequence(request, cache)
            except Exception as error:
                if not self._isolate:
                    self._waiting.popleft()
                    raise
                log.warning("a request could not be admitted: %s", error)
                events.append((number, Event((), (), (), refused(request, str(error)))))
            self._waiting.popleft()
        return events

    def _sequence(self, request: Request, cache: Block) -> Sequence:
        try:
            return Sequence(request, cache, self._tokenizer, self._engine.target.context)
        except BaseException:
            cache.release()
            raise

    def _room(self, request: Request) -> Block | None:
        """A cache for a request, with what is known of its prompt; None while others hold the memory."""
        need, target, prefixes = self._positions(request), self._engine.target, self._prefixes
        try:
            if prefixes is None:
                return target.allocate(need)
            cache = prefixes.allocate(need, request.prompt)
            prefixes.hit_tokens += cache.length
            return cache
        except MemoryLimitError:
            if self._running or (self._isolate and self._others_run()):
                return None
            raise

    def _others_run(self) -> bool:
        """Whether sequences of another scheduler hold some of the target's memory."""
        pool = self._engine.target.pool
        kept = 0 if self._prefixes is None else self._prefixes.idle
        return pool.pages - pool.free_pages > kept
