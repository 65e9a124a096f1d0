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
from taslak.drafters.base import Budget, DrafterOptions, View, register
from taslak.drafters.choice import Children
from taslak.drafters.reader import Reading, ReadsAlong, grow
from taslak.errors import OptionError, SamplingError
from taslak.models.target import Target


@dataclass(slots=True)
class Comb:
    """A draft under construction: of each node's children the first is expanded."""

    view: View
    budget: Budget
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
    """Nothing was left to choose from."""

    @property
    def done(self) -> bool:
        return (
            self.stuck
            or len(self.branch) >= self.budget.depth
            or len(self.tokens) >= self.budget.nodes
            or self.joint < self.budget.stop_below
        )

    def width(self, most: int) -> int:
        """Children that the tip may have, at most so many."""
        return min(most, self.budget.nodes - len(self.tokens))

    def add(self, children: Children) -> None:
        """Hang them below the tip and move on to the first; without any there is nothing to move on to."""
        if not children.tokens:
            self.stuck = True
            return
        drawn = children.q is not None
        if children.q is not None:
            self.q.append(children.q)
        first = len(self.tokens)
        for child, share in zip(children.tokens, children.shares, strict=True):
            self.tokens.append(child)
            self.parents.append(self.tip)
            self.q_row.append(len(self.q) - 1 if drawn else ONE_HOT)
            self.confidence.append(self.joint * share)
        self.tip, self.joint = first, self.confidence[first]
        self.branch.append(children.tokens[0])

    def draft(self) -> Draft:
        return Draft(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            q=torch.stack(self.q) if self.q else None,
            q_row=tuple(self.q_row) if self.q else (),
            confidence=tuple(self.confidence),
        )


@dataclass(slots=True)
class _Growing:
    """A comb, and the second model's reading of its text."""

    reading: Reading
    comb: Comb
    most: int
    """Children of a node."""
    vocab_size: int

    @property
    def next(self) -> int:
        return self.comb.branch[-1]

    @property
    def done(self) -> bool:
        return self.comb.done

    def expand(self, logits: Tensor) -> None:
        """See reader.Growing."""
        row = logits[: self.vocab_size]
        row = F.pad(row, (0, self.vocab_size - row.numel()), value=-torch.inf)
        try:
            self.comb.add(self._children(row))
        except SamplingError:  # expanding no further is always allowed; other sequences go on
            self.comb.stuck = True

    def _children(self, row: Tensor) -> Children:
        """row: Float32[V], of the target's vocabulary."""
        view, branch = self.comb.view, self.comb.branch
        width = self.comb.width(self.most)
        drawn = view.exact_q and not view.sampling.greedy
        row = view.constrained(row, branch)
        dist = view.distribution(row, branch)
        if view.sampling.greedy:
            tokens = _best(row, dist, width)
        else:
            dist = dist.storable() if drawn else dist
            tokens, _ = dist.top(width, view.draft_key, view.stream, view.position + len(branch))
        q = dist.probabilities(self.vocab_size).float() if drawn else None
        likely = torch.softmax(row[None], dim=-1)[0]
        return Children(tokens, [float(likely[token]) for token in tokens], q)


class DraftModel(ReadsAlong):
    """Drafts with a model that reads the target's own tokens."""

    def __init__(self, draft: Target, vocab_size: int, branch: int = 1) -> None:
        """vocab_size: the target's; ids from there on are never drafted."""
        super().__init__(draft)
        self._vocab_size = vocab_size
        self._branch = branch

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        growing = [self._start(view, budget) for view, budget in zip(views, budgets, strict=True)]
        grow(self.reader, [g for g in growing if g is not None])
        return [EMPTY if g is None else g.comb.draft() for g in growing]

    def lag(self, view: View) -> int:
        return self.reader.lag(self._reading(view))

    def forget(self, view: View) -> None:
        if view.state is not None:
            self.reader.forget(view.state)
            view.state = None

    def _start(self, view: View, budget: Budget) -> _Growing | None:
        """None where it can't serve: nothing to draft, its context or the memory is full, or a token is not
        in its vocabulary."""
        reading = self._reading(view)
        depth = min(budget.depth, self.reader.room(view.tokens))
        if depth <= 0 or budget.nodes <= 0 or not self.reader.ready(reading, depth):
            return None
        return _Growing(reading, Comb(view, replace(budget, depth=depth)), self._branch, self._vocab_size)

    def _reading(self, view: View) -> Reading:
        if view.state is None:
            view.state = Reading()
        reading: Reading = view.state
        reading.text = view.tokens
        return reading


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
