"""A draft: a tree of proposed tokens hanging off the last committed token.

Knows nothing about who proposed it or how it will be judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from taslak.errors import DraftError

ROOT = -1
"""The node every draft hangs off: the last committed token. It is not part of the draft."""

ONE_HOT = -1
"""In `Draft.q_row`: the token was chosen, not drawn, so q is one-hot on it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Lower-layer work a drafter already did for a draft's rows (early exit).

    layer:   the first layer that still has to run
    hidden:  Float[N + 1, H], input of that layer for the root and for every node; rows at or past
             `rows` were drafted but not run, and start at layer 0
    rows:    how many leading rows (root included) `hidden` is valid for
    """

    layer: int
    hidden: Tensor
    rows: int

    def starts(self, total: int) -> tuple[int, ...]:
        """The first layer to run for each of `total` rows, root first."""
        return (self.layer,) * self.rows + (0,) * (total - self.rows)


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens as a tree, parents before children, siblings distinct and in decision order.

    Two drafts are equal when they propose the same; tensors are not compared.

    tokens:      [N] target token ids
    parents:     [N] index into `tokens`, ROOT = the last committed token
    q:           Float32[P, V] or None; one row for each parent whose children were drawn: exactly the
                 distribution the *first* child was drawn from; a later one was drawn from the same row
                 without *all* its earlier siblings, those that were not drawn included
    q_row:       [N] the row of `q` a token was drawn from, ONE_HOT = it was not drawn; empty = all ONE_HOT
    confidence:  [N] the drafter's own estimate, for control and re-ranking only, never for verification
    partial:     lower-layer work that the verifying pass may reuse
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: Tensor | None = field(default=None, compare=False)
    q_row: tuple[int, ...] = ()
    confidence: tuple[float, ...] | None = None
    partial: Partial | None = field(default=None, compare=False)
    depths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """[N] 1 for a child of the root."""

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.parents) != n or (self.q_row and len(self.q_row) != n):
            raise DraftError(
                f"a draft of {n} tokens has {len(self.parents)} parents, {len(self.q_row)} q rows"
            )
        if self.confidence is not None and len(self.confidence) != n:
            raise DraftError(f"a draft of {n} tokens has {len(self.confidence)} confidences")
        depths: list[int] = []
        siblings: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not ROOT <= parent < node:
                raise DraftError(f"node {node} names parent {parent}; parents come before their children")
            if (parent, token) in siblings:
                raise DraftError(f"node {node} repeats token {token} below node {parent}")
            siblings.add((parent, token))
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        object.__setattr__(self, "depths", tuple(depths))

    @classmethod
    def chain(
        cls, tokens: Sequence[int], q: Tensor | None = None, confidence: Sequence[float] | None = None
    ) -> Draft:
        """A linear draft. `q`, where given, is Float32[N, V], the row each token was drawn from."""
        n = len(tokens)
        return cls(
            tokens=tuple(tokens),
            parents=tuple(range(-1, n - 1)),
            q=q,
            q_row=tuple(range(n)) if q is not None else (),
            confidence=None if confidence is None else tuple(confidence),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Length of the longest path: what `drafted` counts."""
        return max(self.depths, default=0)

    def children(self, node: int) -> list[int]:
        """The nodes below `node` (ROOT allowed), in decision order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def branch(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node` itself; empty for ROOT."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def agreement(self, text: Sequence[int]) -> int:
        """Depth to which it holds the tokens that came after all."""
        node, depth = ROOT, 0
        for token in text:
            node = next((child for child in self.children(node) if self.tokens[child] == token), ROOT)
            if node == ROOT:
                break
            depth += 1
        return depth

    def pruned(self, admits: Callable[[Sequence[int]], bool]) -> Draft:
        """Without the nodes whose branch is not admitted, and all below them. For drafts without q or partial
        work: a drawn node may not be dropped for its own value, and work is done for all its rows."""
        assert self.q is None
        assert self.partial is None
        number = {ROOT: ROOT}
        kept: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent in number and admits(self.branch(node)):
                number[node] = len(kept)
                kept.append(node)
        if len(kept) == len(self):
            return self
        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in kept),
            parents=tuple(number[self.parents[node]] for node in kept),
            q_row=(),
            confidence=None if self.confidence is None else tuple(self.confidence[node] for node in kept),
        )

    def check(self, vocab_size: int) -> None:
        """Raise DraftError unless every token is in the vocabulary and every q a possible one.

        Rule 3 of rejection verification: a drawn token whose q is not positive and finite discards the
        whole draft *before* anything is verified; dropping it later would bias the answer.
        """
        for node, token in enumerate(self.tokens):
            if not 0 <= token < vocab_size:
                raise DraftError(f"node {node} is token {token}, outside the vocabulary of {vocab_size}")
        if self.confidence is not None and not all(0.0 <= each < math.inf for each in self.confidence):
            raise DraftError("a confidence is negative or not finite")
        if self.partial is not None:
            given, rows = self.partial.hidden.shape[0], self.partial.rows
            if not (1 <= rows <= given == len(self) + 1 and self.partial.layer > 0):
                raise DraftError(f"partial work for {rows} of {given} rows, from layer {self.partial.layer}")
        if self.q is None:
            if any(row != ONE_HOT for row in self.q_row):
                raise DraftError("tokens are said to be drawn, but the draft carries no q")
            return
        if self.q.dim() != 2 or self.q.shape[1] != vocab_size:
            raise DraftError(f"q is {tuple(self.q.shape)}, expected [parents, {vocab_size}]")
        if self.q.numel():
            low, high = (float(end) for end in torch.aminmax(self.q))  # either is NaN if any entry is
            if not (low >= 0.0 and high < math.inf):
                raise DraftError("q holds a negative or non-finite probability")
        for node, row in enumerate(self.q_row):
            if row != ONE_HOT and not 0 <= row < self.q.shape[0]:
                raise DraftError(f"node {node} was drawn from q row {row} of {self.q.shape[0]}")
            if row != ONE_HOT and float(self.q[row, self.tokens[node]]) <= 0.0:
                raise DraftError(f"node {node} is token {self.tokens[node]}, which its q can't draw")


EMPTY = Draft()
"""Legal everywhere: plain decoding is the walk over this draft."""
