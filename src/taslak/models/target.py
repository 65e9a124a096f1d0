"""The Target protocol: what the engine and the drafters ask of a model.

A pass is one ragged batch: the rows of many sequences side by side, each attending to its own sequence's
committed prefix and to its own ancestors, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from taslak.models.cache import Block, Pool
from taslak.models.kernels import Kernels
from taslak.models.layers import Ends

PREFIX = -1
"""As a row's parent: the row follows the committed prefix directly."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence's share of a pass.

    Uncommitted rows are *nodes*, numbered from 0 in the order they are first run since the last `keep`;
    a node's K/V lies `cache.length + node` slots into the sequence.

    cache:    the sequence's cache; its committed prefix is what all rows attend to
    tokens:   [r] token ids
    parents:  [r] node each row follows, PREFIX = the committed prefix; parents before children
    first:    node number of the first row. Normally `cache.nodes`; lower numbers run those nodes again
              from `starts` on (early exit resumes them)
    wanted:   the last this many rows get logits
    starts:   [r] first layer to run for each row; empty = all from 0
    hidden:   Float[r, H] input of the start layer; read only for rows that start above 0
    """

    cache: Block
    tokens: Sequence[int]
    parents: Sequence[int]
    first: int
    wanted: int
    starts: Sequence[int] = ()
    hidden: Tensor | None = None


def chain_rows(cache: Block, tokens: Sequence[int], wanted: int) -> Rows:
    """Rows that follow each other and whatever nodes the cache already holds as a chain."""
    first = cache.nodes
    return Rows(
        cache=cache,
        tokens=tokens,
        parents=range(first - 1 if first else PREFIX, first + len(tokens) - 1),
        first=first,
        wanted=wanted,
    )


def wanted_rows(batch: Sequence[Rows]) -> list[int]:
    """The rows of a pass that get logits, sequence after sequence."""
    wanted: list[int] = []
    end = 0
    for rows in batch:
        end += len(rows.tokens)
        wanted += range(end - rows.wanted, end)
    return wanted


@dataclass(frozen=True, slots=True)
class Output:
    """What a pass gives. Valid until the next forward of the same target.

    logits:    Float32[W, V] of the wanted rows, sequence after sequence
    features:  name -> Float[R, H] of all rows, sequence after sequence
    """

    logits: Tensor
    features: Mapping[str, Tensor]


class Target(Protocol):
    """A causal language model with a cache that can be cropped and reordered."""

    vocab_size: int
    """Token ids a draw may give; padding rows of the lm_head are not among them."""
    padded_vocab_size: int
    """The same with the padding rows."""
    context: int
    """Most positions a sequence may have."""
    layers: int
    hidden_size: int
    device: torch.device
    dtype: torch.dtype
    """Of weights and cache; logits are always float32."""
    cache_limit: int | None
    """Most cache positions all sequences together may have, None = as many as memory gives."""
    width_invariant: bool
    """Whether a row's bits don't depend on the rows beside it (docs/architecture.md)."""
    kernels: Kernels
    """What a network that drafts from this model's hidden states computes with."""
    weight_bytes: int
    """Of all weights."""
    pass_bytes: int
    """Of the weights that a pass reads, at most."""

    pool: Pool
    """Where the K/V of all sequences lies."""

    @property
    def ends(self) -> Ends:
        """Embedding, last norm and head, as `kernels.layers` takes them."""
        ...

    def allocate(self, positions: int, shared: Sequence[int] = ()) -> Block:
        """A cache for one sequence with room for this many positions. Raises MemoryLimitError.
        shared: as for `Pool.allocate`."""
        ...

    def forward(
        self, batch: Sequence[Rows], layers: tuple[int, int] | None = None, capture: Sequence[str] = ()
    ) -> Output:
        """Run the rows through layers [a, b) (default: all) and write their K/V.

        With b < the number of layers there are no logits: logits is [0, V] and the hidden state is read
        as a feature. Features: "embedding", "layer.i" (output of layer i), "final_norm".
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Int64[R] -> [R, H] in the dtype of `kernels`."""
        ...

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """The norm after the last layer, with its own weight or another, both as `kernels` have them.
        x: [R, H], weight: [H] -> [R, H]."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The lm_head alone. x: normed [R, H] in the dtype of `kernels` -> Float32[R, V]."""
        ...

    def unembedding(self, ids: Tensor) -> Tensor:
        """Rows of the lm_head, with what logits are multiplied with in them. Int64[n] -> Float[n, H]."""
        ...
