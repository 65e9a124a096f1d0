"""Scripted models, and drafters that draw from them: the honest ones, and knobs to make them dishonest.

A drafter here is told *how* to choose a child (`Choose`), so that one description serves the exact
enumeration and the runs with real noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from taslak.core.draft import ONE_HOT, ROOT, Draft
from taslak.core.noise import Stream
from taslak.core.sampling import Distribution, Sampling, distribution

from .enumeration import Choices
from .reference import reference

Branch = tuple[int, ...]

Choose = Callable[[Tensor, int], int]
"""(weights: Float64[V], position) -> token. Siblings share their position."""

DRAWN, CHOSEN = "drawn", "chosen"
"""A child drawn from q, or the most probable token not yet taken (one-hot)."""

Level = Sequence[str]
"""The kinds of the children of one node, in decision order."""


@dataclass(frozen=True)
class Script:
    """A pair of models on a small vocabulary: logits are a pseudo-random function of the branch.

    p is what the settings make of the target's logits; q the same for the drafter's, as float32 rows.
    `likeness` 0 makes the drafter independent of the target, 1 a copy of it.
    """

    vocab: int
    seed: int
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    draft_sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    likeness: float = 0.5
    prompt: tuple[int, ...] = (0,)

    def logits(self, name: str, branch: Branch) -> list[float]:
        """Quarters, so that float32 holds every sum of them exactly."""
        rng = random.Random(f"{name} {self.seed} {branch}")
        return [rng.randrange(-10, 11) / 4 for _ in range(self.vocab)]

    def draft_logits(self, branch: Branch) -> list[float]:
        target, other = self.logits("target", branch), self.logits("drafter", branch)
        return [
            round(4 * (self.likeness * t + (1 - self.likeness) * o)) / 4
            for t, o in zip(target, other, strict=True)
        ]

    def p(self, branch: Branch) -> Distribution:
        """What the code under test makes of the target's row."""
        row = torch.tensor(self.logits("target", branch))
        return distribution(row, self.prompt, branch, len(self.prompt), self.sampling)

    def next_token(self, branch: Branch) -> dict[int, float]:
        """What the reference makes of the target's row."""
        context = [*self.prompt, *branch]
        return reference(self.logits("target", branch), context, len(self.prompt), self.sampling)

    def q(self, branch: Branch) -> Tensor:
        """Float32[V], what a drawn child is drawn from."""
        context = [*self.prompt, *branch]
        law = reference(self.draft_logits(branch), context, len(self.prompt), self.draft_sampling)
        return torch.tensor([law.get(token, 0.0) for token in range(self.vocab)], dtype=torch.float32)


def enumerated(choices: Choices) -> Choose:
    """Every token of the support in turn, weighed."""

    def choose(weights: Tensor, position: int) -> int:
        shares = (weights / weights.sum()).tolist()
        return choices.pick(list(enumerate(shares)))

    return choose


def hashed(key: int, stream: Stream) -> Choose:
    """The real noise: siblings are the largest of log q + g, that is, draws without replacement."""

    def choose(weights: Tensor, position: int) -> int:
        return Distribution.of_weights(weights).draw(key, stream, position)

    return choose


@dataclass(frozen=True)
class Grower:
    """Drafts of one shape: `levels[d]` are the children of every node of depth d.

    expand:      whether to go on below a node, given its branch (always legal, whatever it looks at)
    keep:        whether a node stays, given (its q, its branch): legal for chosen children only
    scored:      give chosen children a q row as if they had been drawn (never legal)
    reported:    the row reported as q instead of the one drawn from (never legal)
    """

    q: Callable[[Branch], Tensor]
    levels: Sequence[Level]
    expand: Callable[[Branch], bool] = lambda branch: True
    keep: Callable[[float, Branch], bool] = lambda q, branch: True
    scored: bool = False
    reported: Callable[[Branch], Tensor] | None = None

    def __call__(self, choose: Choose) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Tensor] = []
        q_row: list[int] = []
        frontier: list[tuple[int, Branch]] = [(ROOT, ())]
        for depth, level in enumerate(self.levels):
            below: list[tuple[int, Branch]] = []
            for parent, branch in frontier:
                if parent != ROOT and not self.expand(branch):
                    continue
                q = self.q(branch)
                weights = q.double()  # [V], loses the earlier siblings one by one
                rows.append(q if self.reported is None else self.reported(branch))
                for kind in level:
                    if not bool(weights.any()):
                        break
                    token = choose(weights, depth) if kind == DRAWN else int(weights.argmax())
                    weights[token] = 0.0
                    if not self.keep(float(q[token]), (*branch, token)):
                        continue
                    tokens.append(token)
                    parents.append(parent)
                    q_row.append(len(rows) - 1 if kind == DRAWN or self.scored else ONE_HOT)
                    below.append((len(tokens) - 1, (*branch, token)))
            frontier = below
        return Draft(tuple(tokens), tuple(parents), torch.stack(rows), tuple(q_row))
