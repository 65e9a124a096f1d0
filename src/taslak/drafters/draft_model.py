"""A second, smaller model with the same tokenizer drafts (Leviathan et al. 2023, Chen et al. 2023).

Linear, or with `branch` > 1 a comb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget, DrafterOptions, Needs, Report, View, register
from taslak.drafters.comb import Comb
from taslak.errors import OptionError
from taslak.models.cache import Block
from taslak.models.target import Target, chain_rows

_CHUNK = 512
"""Rows of one catch-up pass."""


@dataclass(slots=True)
class _State:
    """The draft model's cache of one sequence, and the tokens whose K/V it holds."""

    cache: Block
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class _Growing:
    """A draft under construction, and what the draft model knows of its sequence."""

    comb: Comb
    state: _State

    @property
    def text(self) -> list[int]:
        """The committed tokens."""
        return self.comb.view.tokens


class DraftModel:
    """Drafts with a model of its own cache; it learns what was kept from the view's tokens alone."""

    needs = Needs()

    def __init__(self, draft: Target, vocab_size: int, branch: int = 1) -> None:
        """vocab_size: the target's; ids from there on are never drafted."""
        self._model = draft
        self._vocab_size = vocab_size
        self._branch = branch

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        growing = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        active = [g for g in growing if g is not None]
        if active:
            logits = self._catch_up(active)  # [n, V]
            while True:
                for g, row in zip(active, logits, strict=True):
                    g.comb.expand(row, self._branch, self._vocab_size)
                keep = [g for g in active if not g.comb.done]
                if not keep:
                    break
                active = keep
                batch = [chain_rows(g.state.cache, [g.comb.branch[-1]], 1) for g in active]
                logits = self._model.forward(batch).logits
                for g in active:
                    g.state.cache.keep([0])
                    g.state.tokens.append(g.comb.branch[-1])
        return [EMPTY if g is None else g.comb.draft() for g in growing]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to learn: the next `propose` sees the committed tokens."""

    def lag(self, view: View) -> int:
        return len(view.tokens) - (0 if view.state is None else _common(view.state.tokens, view.tokens))

    def forget(self, view: View) -> None:
        if view.state is not None:
            view.state.cache.release()
            view.state = None

    def _start(self, view: View, budget: Budget) -> _Growing | None:
        """Cut what is remembered to what is still true, and make room for this draft. None where it can't
        serve: nothing to draft, its own context is full, or a token is not in its vocabulary."""
        depth = min(budget.depth, self._model.context - len(view.tokens))
        if depth <= 0 or budget.nodes <= 0:
            return None
        state: _State = view.state or _State(self._model.allocate(0), [])
        view.state = state
        # the last committed token is always run again: its logits are what the draft starts from
        known = min(_common(state.tokens, view.tokens), len(view.tokens) - 1)
        if max(view.tokens[known:]) >= self._model.vocab_size:
            return None
        state.cache.crop(known)
        del state.tokens[known:]
        state.cache.reserve(len(view.tokens) + depth)
        return _Growing(Comb(view, replace(budget, depth=depth)), state)

    def _catch_up(self, active: Sequence[_Growing]) -> Tensor:
        """Run the committed tokens the cache lacks; logits after the last one. -> Float[n, V]."""
        last: list[Tensor | None] = [None] * len(active)
        while any(row is None for row in last):
            batch, who = [], []
            room = _CHUNK
            for i, g in enumerate(active):
                known = len(g.state.tokens)
                chunk = g.text[known : known + max(room, 1)]
                if last[i] is None and (room > 0 or len(g.text) - known == 1):
                    ends = known + len(chunk) == len(g.text)
                    batch.append(chain_rows(g.state.cache, chunk, int(ends)))
                    who.append((i, chunk, ends))
                    room -= len(chunk)
            logits = self._model.forward(batch).logits
            row = 0
            for i, chunk, ends in who:
                active[i].state.cache.keep(range(len(chunk)))
                active[i].state.tokens += chunk
                if ends:
                    last[i] = logits[row].clone()  # the next chunk of another sequence ends their validity
                    row += 1
        return torch.stack([row for row in last if row is not None])


def _common(known: Sequence[int], tokens: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    short = min(len(known), len(tokens))
    if known[:short] == tokens[:short]:
        return short
    return next(i for i in range(short) if known[i] != tokens[i])


@register("draft-model", needs_draft=True)
def _build(target: Target, options: DrafterOptions) -> DraftModel:
    if options.draft is None:
        raise OptionError("method draft-model needs a draft model; name one with --draft")
    return DraftModel(options.draft, target.vocab_size, options.branch)
