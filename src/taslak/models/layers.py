"""What runs rows through a decoder: the contract, and its form in PyTorch.

`TorchLayers` here, `taslak.models.native_ops.NativeLayers` beside it. Both know weights and cache slots, not
drafts or the names of features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.ops import Ops, Share
from taslak.models.rope import Rope, rotate

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
"""A layer's norms, and what a checkpoint calls each."""

HEAD = "lm_head.weight"


def weight_name(layer: int, product: str, kind: str = "weight") -> str:
    """The Hugging Face name of a matrix or (kind "bias") its bias."""
    return f"model.layers.{layer}.{PRODUCTS[product]}.{product}_proj.{kind}"


def norm_name(layer: int, norm: str) -> str:
    """The Hugging Face name of a norm's weight."""
    return f"model.layers.{layer}.{NORMS[norm]}.weight"


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
    """

    embedding: Matrix | None = None
    fuse: Matrix | None = None
    fuse_bias: Tensor | None = None
    norm: Tensor | None = None
    head: Matrix | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What rows have become.

    captured:  Float[R, H] of each output asked for
    logits:    Float32[W, V] of the wanted rows; None where none were wanted
    """

    captured: dict[int, Tensor]
    logits: Tensor | None = None


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
                  rows
        wanted:   rows that get last norm and logits
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Int64[R] -> [R, H]."""
        ...

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """The norm after the last layer, with its own weight or another. x: [R, H], weight: [H] -> [R, H]."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The head. x: normed [R, H] -> Float32[R, V]."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights [out, in], biases [out] or None. Without an input norm q, k and v read the rows as they are."""

    input_norm: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    o_bias: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], layer: int) -> Layer:
        fields: dict[str, Any] = {}
        for name in PRODUCTS:
            fields[name] = weights[weight_name(layer, name)]
            fields[f"{name}_bias"] = weights.get(weight_name(layer, name, "bias"))
        return cls(
            input_norm=weights.get(norm_name(layer, "input_norm")),
            post_norm=weights[norm_name(layer, "post_norm")],
            **fields,
        )


@dataclass(frozen=True, slots=True)
class _Where:
    """Where the rows of a pass stand.

    cos, sin:  Float[R, 1, d], the rotation of each row's position
    slots:     Int64[R], cache slots of the rows' own K/V
    plan:      what `Ops.attend` needs to know
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor
    plan: Any


class TorchLayers:
    """In PyTorch, the arithmetic done by `ops`. `pool` holds the K/V; weights: by Hugging Face name."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor], ends: Ends, pool: Pool, ops: Ops
    ) -> None:
        self._config = config
        self._layers = [Layer.of(weights, layer) for layer in range(config.layers)]
        self._ends = ends
        self._pool = pool
        self._ops = ops
        self.width_invariant = ops.width_invariant
        self.dtype = self._layers[0].q.dtype
        self._rope = Rope(config.rope, config.head_size, self.dtype, pool.keys.device)
        products = [(w.q, w.k, w.v, w.o, w.gate, w.up, w.down) for w in self._layers]
        outer = [matrix for matrix in (ends.fuse, ends.head) if matrix is not None]
        ops.prepare([*outer, *(weight for layer in products for weight in layer)])

    @torch.inference_mode()
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
        x = self._start(tokens, hidden)
        captured = {EMBEDDED: x} if EMBEDDED in capture else {}
        where = self._where(shares)
        for index in range(first, last):
            x = self._layer(index, x, where, beside)
            if index in capture:
                captured[index] = x
        if self._config.layers in capture:
            captured[self._config.layers] = self.norm(x)
        if not wanted:
            return Ran(captured)
        ends = x if len(wanted) == x.shape[0] else x[list(wanted)]  # [W, H]
        return Ran(captured, self.logits(ends if self._ends.norm is None else self.norm(ends)))

    def _start(self, tokens: Sequence[int], hidden: Tensor | None) -> Tensor:
        """What the first layer reads. -> [R, H]."""
        if not tokens:
            assert hidden is not None
            return hidden
        embedded = self.embed(torch.tensor(tokens, device=self._pool.keys.device))
        if hidden is None:
            return embedded
        assert self._ends.fuse is not None
        return self._ops.linear(torch.cat((embedded, hidden), dim=-1), self._ends.fuse, self._ends.fuse_bias)

    def _where(self, shares: Sequence[Share]) -> _Where:
        positions = [position for share in shares for position in share.positions()]
        cos, sin = self._rope.table(max(positions) + 1)
        slots = [slot for share in shares for slot in share.slots()]
        # one tensor: making one takes as long as everything else that is done with it
        at, own = torch.tensor([positions, slots], device=self._pool.keys.device)
        return _Where(cos[at][:, None], sin[at][:, None], own, self._ops.plan(shares))

    def embed(self, tokens: Tensor) -> Tensor:
        assert self._ends.embedding is not None
        return F.embedding(tokens, self._ends.embedding).to(self.dtype)

    def _layer(self, index: int, x: Tensor, where: _Where, beside: Tensor | None) -> Tensor:
        """One transformer block. x: [R, H] -> [R, H]."""
        w, ops, config = self._layers[index], self._ops, self._config
        rows = x.shape[0]
        h = x if w.input_norm is None else ops.norm(x, w.input_norm, config.norm_eps)
        if beside is not None:
            h = torch.cat((beside, h), dim=-1)  # [R, B + H]
        q = ops.linear(h, w.q, w.q_bias).view(rows, config.heads, config.head_size)
        k = ops.linear(h, w.k, w.k_bias).view(rows, config.kv_heads, config.head_size)
        v = ops.linear(h, w.v, w.v_bias).view(rows, config.kv_heads, config.head_size)
        keys, values = self._pool.keys[index], self._pool.values[index]  # [slots, kv heads, d]
        keys[where.slots] = rotate(k, where.cos, where.sin)
        values[where.slots] = v
        mixed = ops.attend(rotate(q, where.cos, where.sin), keys, values, where.plan)  # [R, heads · d]
        x = x + ops.linear(mixed, w.o, w.o_bias)
        h = ops.norm(x, w.post_norm, config.norm_eps)
        h = ops.gate(ops.linear(h, w.gate, w.gate_bias), ops.linear(h, w.up, w.up_bias))  # [R, I]
        return x + ops.linear(h, w.down, w.down_bias)

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self._ends.norm if weight is None else weight
        assert weight is not None
        return self._ops.norm(x, weight, self._config.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        assert self._ends.head is not None
        return self._ops.linear(x, self._ends.head, None).float()
