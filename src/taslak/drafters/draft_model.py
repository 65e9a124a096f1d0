"""A second, smaller model with the same tokenizer drafts (Leviathan et al. 2023, Chen et al. 2023).

Linear, or with `branch` > 1 a comb: the first child of each node is expanded, its siblings are leaves. All
drawn children are kept, so the tree's shape never depends on what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.core.draft import EMPTY, ONE_HOT, ROOT, Draft
from taslak.core.sampling import Distribution
from taslak.drafters.base import Budget, DrafterOptions, Needs, Report, View, common_prefix, register
from taslak.errors import MemoryLimitError, OptionError, SamplingError
from taslak.models.cache import PAGE, Block, Pool
from taslak.models.prefix import PrefixCache
from taslak.models.target import Target, chain_rows

_CHUNK = 512
"""Rows of one catch-up pass."""


@dataclass(slots=True)
class _State:
    """The draft model's cache of one sequence, and the tokens whose K/V it holds."""

    cache: Block
    tokens: list[int]


@dataclass(slots=True)
class _Growing:
    """A draft under construction."""

    view: View
    budget: Budget
    state: _State
    branch: list[int] = field(default_factory=list)
    """The expanded chain."""
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    q_row: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    tip: int = ROOT
    """The node to expand next."""
    joint: float = 1.0
    stuck: bool = False
    """The draft model left nothing to choose from."""

    @property
    def done(self) -> bool:
        return (
            self.stuck
            or len(self.branch) >= self.budget.depth
            or len(self.tokens) >= self.budget.nodes
            or self.joint < self.budget.stop_below
        )

    def draft(self) -> Draft:
        return Draft(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            q=torch.stack(self.q) if self.q else None,
            q_row=tuple(self.q_row) if self.q else (),
            confidence=tuple(self.confidence),
        )


class DraftModel:
    """Drafts with a model of its own cache; it learns what was kept from the view's tokens alone."""

    needs = Needs()
    watch = None

    def __init__(self, draft: Target, vocab_size: int, branch: int = 1) -> None:
        """vocab_size: the target's; ids from there on are never drafted."""
        self.prefixes: PrefixCache | None = None
        """Where it finds and leaves beginnings of texts; None = it reads every text from its beginning."""
        self._model = draft
        self._vocab_size = vocab_size
        self._branch = branch

    @property
    def pool(self) -> Pool:
        """Where its K/V lies."""
        return self._model.pool

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        growing = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        active = [g for g in growing if g is not None]
        if active:
            logits = self._catch_up(active)  # [n, V]
            while True:
                for g, row in zip(active, logits, strict=True):
                    self._expand(g, row)
                keep = [g for g in active if not g.done]
                if not keep:
                    break
                active = keep
                batch = [chain_rows(g.state.cache, [g.branch[-1]], 1) for g in active]
                logits = self._model.forward(batch).logits
                for g in active:
                    g.state.cache.keep([0])
                    g.state.tokens.append(g.branch[-1])
        return [EMPTY if g is None else g.draft() for g in growing]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        """Nothing to learn: the next `propose` sees the committed tokens."""

    def lag(self, view: View) -> int:
        if view.state is None:
            known = [] if self.prefixes is None else self.prefixes.find(view.tokens)
            return len(view.tokens) - PAGE * len(known)
        return len(view.tokens) - common_prefix(view.state.tokens, view.tokens)

    def forget(self, view: View) -> None:
        if view.state is not None:
            if self.prefixes is not None:
                self.prefixes.keep(view.state.tokens, view.state.cache)
            view.state.cache.release()
            view.state = None

    def _start(self, view: View, budget: Budget) -> _Growing | None:
        """Cut what is remembered to what is still true, and make room for this draft. None where it can't
        serve: nothing to draft, its context or the memory is full, or a token is not in its vocabulary."""
        depth = min(budget.depth, self._model.context - len(view.tokens))
        if depth <= 0 or budget.nodes <= 0:
            return None
        state: _State | None = view.state
        if state is None:
            prefixes = self.prefixes
            cache = self._model.allocate(0) if prefixes is None else prefixes.allocate(0, view.tokens)
            state = view.state = _State(cache, view.tokens[: cache.length])
        # the last committed token is always run again: its logits are what the draft starts from
        known = min(common_prefix(state.tokens, view.tokens), len(view.tokens) - 1)
        if max(view.tokens[known:]) >= self._model.vocab_size:
            return None
        state.cache.crop(known)
        if state.cache.length > known:  # pages that others read too can't be cut
            state.cache.release()
            state.cache, known = self._model.allocate(0), 0
        del state.tokens[known:]
        try:
            self._reserve(state.cache, len(view.tokens) + depth)
        except MemoryLimitError:
            return None
        return _Growing(view, replace(budget, depth=depth), state)

    def _reserve(self, cache: Block, positions: int) -> None:
        """Make room for so many, by what is kept of earlier texts where need be."""
        try:
            cache.reserve(positions)
        except MemoryLimitError:
            short = -(-(positions - cache.capacity) // PAGE)
            if self.prefixes is None or not self.prefixes.relieve(short):
                raise
            cache.reserve(positions)

    def _catch_up(self, active: Sequence[_Growing]) -> Tensor:
        """Run the committed tokens the cache lacks; logits after the last one. -> Float[n, V]."""
        last: list[Tensor | None] = [None] * len(active)
        while any(row is None for row in last):
            batch, who = [], []
            room = _CHUNK
            for i, g in enumerate(active):
                known = len(g.state.tokens)
                chunk = g.view.tokens[known : known + max(room, 1)]
                if last[i] is None and (room > 0 or len(g.view.tokens) - known == 1):
                    ends = known + len(chunk) == len(g.view.tokens)
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

    def _expand(self, g: _Growing, logits: Tensor) -> None:
        """Draw the children of the tip and move on to the first. logits: [V]."""
        view = g.view
        row = logits[: self._vocab_size]
        row = F.pad(row, (0, self._vocab_size - row.numel()), value=-torch.inf)
        position = view.position + len(g.branch)
        width = min(self._branch, g.budget.nodes - len(g.tokens))
        drawn = view.exact_q and not view.sampling.greedy
        try:
            row = view.constrained(row, g.branch)
            dist = view.distribution(row, g.branch)
            if view.sampling.greedy:
                children = _best(row, dist, width)
            else:
                dist = dist.storable() if drawn else dist
                children, _ = dist.top(width, view.draft_key, view.stream, position)
        except SamplingError:  # expanding no further is always allowed; other sequences go on
            g.stuck = True
            return
        if drawn:
            g.q.append(dist.probabilities(self._vocab_size).float())
        likely = torch.softmax(row[None], dim=-1)[0]
        first = len(g.tokens)
        for child in children:
            g.tokens.append(child)
            g.parents.append(g.tip)
            g.q_row.append(len(g.q) - 1 if drawn else ONE_HOT)
            g.confidence.append(g.joint * float(likely[child]))
        g.tip, g.joint = first, g.confidence[first]
        g.branch.append(children[0])


def _best(row: Tensor, dist: Distribution, width: int) -> list[int]:
    """The greedy choice, then the next largest logits as its siblings (one-hot: they are not drawn)."""
    chosen = int(dist.ids[0])
    if width == 1:
        return [chosen]
    best = torch.topk(row, min(width, row.numel()))
    runners_up = best.indices[best.values > -torch.inf].tolist()
    return [chosen, *(i for i in runners_up if i != chosen)][:width]


@register("draft-model", needs_draft=True)
def _build(target: Target, options: DrafterOptions) -> DraftModel:
    if options.draft is None:
        raise OptionError("method draft-model needs a draft model; name one with --draft")
    return DraftModel(options.draft, target.vocab_size, options.branch)
