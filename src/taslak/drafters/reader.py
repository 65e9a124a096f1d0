"""A second model that reads along: its own cache of each text, caught up and cut as texts go on or change.

What it reads, and what becomes of what it says, is its drafter's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from taslak.drafters.base import Needs, Report, View, common_prefix
from taslak.errors import MemoryLimitError
from taslak.models.cache import PAGE, Block, Pool
from taslak.models.prefix import PrefixCache
from taslak.models.target import Target, chain_rows

_CHUNK = 512
"""Rows of one catch-up pass."""


@dataclass(slots=True)
class Reading:
    """One text as the second model has it.

    text:   committed, in its own tokens; set by the drafter before every draft
    known:  the tokens whose K/V the cache holds
    cache:  None = nothing was read yet
    """

    text: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    cache: Block | None = None

    @property
    def block(self) -> Block:
        """The cache, once there is one."""
        assert self.cache is not None
        return self.cache


class Growing(Protocol):
    """A draft under construction, a token of the second model at a time."""

    @property
    def reading(self) -> Reading: ...

    @property
    def next(self) -> int:
        """The token that the second model has to run next."""
        ...

    @property
    def done(self) -> bool: ...

    def expand(self, logits: Tensor) -> None:
        """Go on by what the second model says after all it has read. logits: Float32[V], its own."""
        ...


class Reader:
    """Runs the second model for many texts at once."""

    def __init__(self, model: Target) -> None:
        self.prefixes: PrefixCache | None = None
        """Where it finds and leaves beginnings of texts; None = it reads every text from its beginning."""
        self._model = model

    @property
    def pool(self) -> Pool:
        """Where its K/V lies."""
        return self._model.pool

    def room(self, text: Sequence[int]) -> int:
        """Tokens that its context has room for after these."""
        return self._model.context - len(text)

    def lag(self, reading: Reading) -> int:
        """Tokens of the text that were not read yet."""
        if reading.cache is None:
            known = [] if self.prefixes is None else self.prefixes.find(reading.text)
            return len(reading.text) - PAGE * len(known)
        return len(reading.text) - common_prefix(reading.known, reading.text)

    def ready(self, reading: Reading, more: int) -> bool:
        """Cut what was read to what is still true, and make room for so many tokens behind the text. False
        where it can't be read: the memory is full, it is empty, or a token is not in the vocabulary."""
        text = reading.text
        if not text:
            return False
        if reading.cache is None:
            prefixes = self.prefixes
            reading.cache = self._model.allocate(0) if prefixes is None else prefixes.allocate(0, text)
            reading.known = text[: reading.cache.length]
        # the last token is always run again: its logits are what the draft starts from
        known = min(common_prefix(reading.known, text), len(text) - 1)
        if max(text[known:]) >= self._model.vocab_size:
            return False
        reading.cache.crop(known)
        if reading.cache.length > known:  # pages that others read too can't be cut
            reading.cache.release()
            reading.cache, known = self._model.allocate(0), 0
        del reading.known[known:]
        try:
            self._reserve(reading.cache, len(text) + more)
        except MemoryLimitError:
            return False
        return True

    def catch_up(self, readings: Sequence[Reading]) -> Tensor:
        """Run what the caches lack of texts that are `ready`; logits after the last token of each.
        -> Float32[n, V]."""
        last: list[Tensor | None] = [None] * len(readings)
        while any(row is None for row in last):
            batch, who = [], []
            room = _CHUNK
            for i, reading in enumerate(readings):
                known = len(reading.known)
                chunk = reading.text[known : known + max(room, 1)]
                if last[i] is None and (room > 0 or len(reading.text) - known == 1):
                    ends = known + len(chunk) == len(reading.text)
                    batch.append(chain_rows(reading.block, chunk, int(ends)))
                    who.append((i, chunk, ends))
                    room -= len(chunk)
            logits = self._model.forward(batch).logits
            row = 0
            for i, chunk, ends in who:
                readings[i].block.keep(range(len(chunk)))
                readings[i].known += chunk
                if ends:
                    last[i] = logits[row].clone()  # the next chunk of another text ends their validity
                    row += 1
        return torch.stack([row for row in last if row is not None])

    def read_on(self, readings: Sequence[Reading], tokens: Sequence[int]) -> Tensor:
        """Run one more token of each. -> Float32[n, V], valid until the next pass."""
        batch = [chain_rows(r.block, [token], 1) for r, token in zip(readings, tokens, strict=True)]
        logits = self._model.forward(batch).logits
        for reading, token in zip(readings, tokens, strict=True):
            reading.block.keep([0])
            reading.known.append(token)
        return logits

    def forget(self, reading: Reading) -> None:
        """The text is over: free what is kept of it. Calling it twice is harmless."""
        if reading.cache is not None:
            if self.prefixes is not None:
                self.prefixes.keep(reading.known, reading.cache)
            reading.cache.release()
            reading.cache = None
            reading.known = []

    def _reserve(self, cache: Block, positions: int) -> None:
        """Make room for so many, by what is kept of earlier texts where need be."""
        try:
            cache.reserve(positions)
        except MemoryLimitError:
            short = -(-(positions - cache.capacity) // PAGE)
            if self.prefixes is None or not self.prefixes.relieve(short):
                raise
            cache.reserve(positions)


class ReadsAlong:
    """What drafters with a second model have in common: they learn what was kept from the view's tokens."""

    needs = Needs()
    watch = None

    def __init__(self, model: Target) -> None:
        self.reader = Reader(model)

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to learn: the next `propose` sees the committed tokens."""


def grow(reader: Reader, drafts: Sequence[Growing]) -> None:
    """Expand drafts of texts that are ready, all together, a pass of the second model a token."""
    if not drafts:
        return
    active = list(drafts)
    logits = reader.catch_up([draft.reading for draft in active])  # [n, V]
    while True:
        for draft, row in zip(active, logits, strict=True):
            draft.expand(row)
        active = [draft for draft in active if not draft.done]
        if not active:
            return
        logits = reader.read_on([draft.reading for draft in active], [draft.next for draft in active])
