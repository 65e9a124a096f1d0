"""A comb, the draft a model grows token by token: the first child of a node is expanded, others are leaves.

With one child a node it is a line. All drawn children are kept, so the shape never depends on what was drawn.

Knows nothing about where logits come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.core.draft import ONE_HOT, ROOT, Draft, Partial
from taslak.core.sampling import Distribution, distribution
from taslak.drafters.base import Budget, View
from taslak.errors import SamplingError


@dataclass(slots=True)
class Comb:
    """A draft under construction.

    branch:  the expanded chain: the tokens of `spine`
    spine:   the nodes that were expanded, or are next to be
    joint:   the drafter's confidence in the whole chain
    stuck:   the logits left nothing to choose from
    """

    view: View
    budget: Budget
    branch: list[int] = field(default_factory=list)
    spine: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    q_row: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    joint: float = 1.0
    stuck: bool = False

    @property
    def done(self) -> bool:
        """Whether the budget is used up, the confidence too low, or nothing left to choose from."""
        return (
            self.stuck
            or len(self.branch) >= self.budget.depth
            or len(self.tokens) >= self.budget.nodes
            or self.joint < self.budget.stop_below
        )

    def expand(self, logits: Tensor, children: int, vocab_size: int) -> None:
        """Draw the children of the last node of the chain and move on to the first.

        logits:      [any], one row; ids from `vocab_size`, the target's, on are never drafted
        children:    how many, where the budget has room for them
        """
        view = self.view
        row = logits[:vocab_size]
        row = F.pad(row, (0, vocab_size - row.numel()), value=-torch.inf)
        try:
            dist = distribution(row, view.tokens, self.branch, view.prompt_length, view.sampling)
        except SamplingError:  # expanding no further is always allowed; other sequences go on
            self.stuck = True
            return
        position = view.position + len(self.branch)
        width = min(children, self.budget.nodes - len(self.tokens))
        if view.sampling.greedy:
            chosen = _best(row, dist, width)
            drawn = False
        else:
            chosen = dist.top(width, view.key, view.stream, position)
            drawn = view.exact_q
        if drawn:
            self.q.append(dist.probabilities(vocab_size).float())
        likely = torch.softmax(row[None], dim=-1)[0]
        first, parent = len(self.tokens), self.spine[-1] if self.spine else ROOT
        for token in chosen:
            self.tokens.append(token)
            self.parents.append(parent)
            self.q_row.append(len(self.q) - 1 if drawn else ONE_HOT)
            self.confidence.append(self.joint * float(likely[token]))
        self.joint = self.confidence[first]
        self.spine.append(first)
        self.branch.append(chosen[0])

    def draft(self) -> Draft:
        """Node after node as they were drawn."""
        return self._draft(range(len(self.tokens)))

    def draft_chain_first(self, partial: Partial) -> Draft:
        """The chain's nodes before its siblings: those that `partial` has work for lead."""
        siblings = sorted({*range(len(self.tokens))} - {*self.spine})
        return self._draft([*self.spine, *siblings], partial)

    def _draft(self, order: range | list[int], partial: Partial | None = None) -> Draft:
        place = {node: i for i, node in enumerate(order)} | {ROOT: ROOT}
        return Draft(
            tokens=tuple(self.tokens[node] for node in order),
            parents=tuple(place[self.parents[node]] for node in order),
            q=torch.stack(self.q) if self.q else None,
            q_row=tuple(self.q_row[node] for node in order) if self.q else (),
            confidence=tuple(self.confidence[node] for node in order),
            partial=partial,
        )


def _best(row: Tensor, dist: Distribution, width: int) -> list[int]:
    """The greedy choice, then the next largest logits as its siblings (one-hot: they are not drawn)."""
    chosen = int(dist.ids[0])
    if width == 1:
        return [chosen]
    runners_up = [int(i) for i in torch.topk(row, min(width, row.numel())).indices if int(i) != chosen]
    return [chosen, *runners_up[: width - 1]]
