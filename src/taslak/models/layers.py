"""What runs rows through a decoder: the contract.

`TorchLayers` (torch_layers.py) and `NativeLayers` (native_ops.py) keep it. Both know weights
and cache slots, not drafts or the names of features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from taslak.models.config import DecoderConfig
from taslak.models.ops import Share

PRODUCTS = {
    "q": "self_attn",
    "k": "self_attn",
    "v": "self_attn",
    "o": "self_attn",
    "gate": "mlp",
    "up": "mlp",
    "down": "mlp",
}
"""A layer's matrices and the part of a checkpoint's layer that holds each."""

NORMS = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
"""The norms before a layer's attention and MLP, and what a checkpoint calls each."""

FURTHER_NORMS = {
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o_norm": "self_attn.o_norm",
    "down_norm": "mlp.down_norm",
}
"""Those of q and k, and those behind attention and MLP."""

_NORM_PARTS = NORMS | FURTHER_NORMS

HEAD = "lm_head.weight"


def weight_name(layer: int, product: str, kind: str = "weight") -> str:
    """Our name of a matrix or (kind "bias") its bias: a Llama's in Hugging Face's layout."""
    return f"model.layers.{layer}.{PRODUCTS[product]}.{product}_proj.{kind}"


def norm_name(layer: int, norm: str, kind: str = "weight") -> str:
    """Our name of a norm's weight or (kind "bias") its bias: Hugging Face's, where a Llama has it."""
    return f"model.layers.{layer}.{_NORM_PARTS[norm]}.{kind}"


EMBEDDED = -1
"""In `capture`: what the first layer reads. A layer's number is its output, the number of layers the last
norm's."""

Matrix = Any
"""A Tensor or a Packed, [N, K]: as the kernels at hand read it."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before some layers and behind them. Each may be missing where it is never asked for.

    embedding:   [V, H]
    fuse:        [H, 2 H], makes one row of a token's embedding and a hidden state
    fuse_bias:   [H]
    norm:        [H], of what the head reads; None: that reads the rows as they are
    head:        [V, H], or of fewer tokens
    norm_bias:   [H], of a LayerNorm
    positions:   [P, H], added to the embedding of a token by its position
    embedding_scale, logit_scale, logit_cap:  as in DecoderConfig
    """

    embedding: Matrix | None = None
    fuse: Matrix | None = None
    fuse_bias: Tensor | None = None
    norm: Tensor | None = None
    head: Matrix | None = None
    norm_bias: Tensor | None = None
    positions: Tensor | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    @classmethod
    def of(cls, config: DecoderConfig, embedding: Matrix, weights: Mapping[str, Any], head: Matrix) -> Ends:
        """A model's own."""
        return cls(
            embedding,
            norm=weights["model.norm.weight"],
            head=head,
            norm_bias=weights.get("model.norm.bias"),
            positions=weights.get("model.embed_positions.weight"),
            embedding_scale=config.embedding_scale,
            logit_scale=config.logit_scale,
            logit_cap=config.logit_cap,
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """What rows have become.

    captured:  Float[R, H] of each output asked for
    logits:    Float32[W, V] of the wanted rows; None where none were wanted
    """

    captured: dict[int, Tensor]
    logits: Tensor | None = None


def started(
    ends: Ends,
    x: Tensor,
    hidden: Tensor | None,
    shares: Sequence[Share],
    linear: Callable[[Tensor, Any, Tensor | None], Tensor],
) -> Tensor:
    """What the first layer reads. x: rows of the embedding as they are stored; hidden: what is fused with
    them. All [R, H]."""
    if ends.embedding_scale != 1.0:
        x = x * ends.embedding_scale
    if ends.positions is not None:
        x = x + ends.positions[[position for share in shares for position in share.positions()]]
    if hidden is None:
        return x
    assert ends.fuse is not None
    return linear(torch.cat((x, hidden), dim=-1), ends.fuse, ends.fuse_bias)


class Layers(Protocol):
    """Layers and their ends. All hidden states have `dtype`."""

    width_invariant: bool
    dtype: torch.dtype

    def run(
        self,
        first: int,
        last: int,
        shares: Sequence[Share],
        *,
        tokens: Sequence[int] = (),
        hidden: Tensor | None = None,
        beside: Tensor | None = None,
        capture: Collection[int] = (),
        wanted: Sequence[int] = (),
    ) -> Ran:
        """Layers [first, last); writes the rows' K/V before anyone reads it.

        shares:   the rows' sequences, in the order of the rows
        tokens:   [R], to be embedded
        hidden:   Float[R, H], not modified. One of them is what the first layer reads; given both, they are
                  fused
        beside:   [R, B], what stands before the (normed) rows where q, k and v read B + H columns
        capture:  outputs to give: of these layers, EMBEDDED, or the number of layers for the last norm of all
                  rows. Of no layers (first = last): what the first one would read
        wanted:   rows that get last norm and logits
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding as they are stored. Int64[R] -> [R, H]."""
        ...

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """The norm after the last layer, with its own weight or another. x: [R, H], weight: [H] -> [R, H]."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The head. x: normed [R, H] -> Float32[R, V]."""
        ...
