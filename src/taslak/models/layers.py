"""What runs rows through a decoder's layers: the contract, and its form in PyTorch.

`TorchLayers` here, `taslak.models.native_ops.NativeLayers` beside it. Both know layers and cache slots, not
tokens, drafts or features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.ops import Ops, Share
from taslak.models.rope import rotate

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


@dataclass(frozen=True, slots=True)
class Where:
    """Where the rows of a pass stand.

    cos, sin:  Float[R, 1, d], the rotation of each row's position
    slots:     Int64[R], cache slots of the rows' own K/V
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor

    def pick(self, rows: Tensor) -> Where:
        return Where(self.cos[rows], self.sin[rows], self.slots[rows])


class Layers(Protocol):
    """The layers of one model, its last norm and its head. All hidden states have `dtype`."""

    width_invariant: bool
    dtype: torch.dtype

    def plan(self, shares: Sequence[Share]) -> Any:
        """What `run` needs to know of a pass; made once for all layers."""
        ...

    def run(
        self,
        first: int,
        last: int,
        x: Tensor,
        where: Where,
        plan: Any,
        capture: Collection[int] = (),
        beside: Tensor | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Layers [first, last); writes the rows' K/V before anyone reads it. x: [R, H], not modified.
        `beside`: [R, B], what stands before the (normed) rows where q, k and v read B + H columns.

        -> [R, H], and the outputs of the captured layers.
        """
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


class TorchLayers:
    """Layers in PyTorch, their arithmetic done by `ops`. `head`: [V, H], None where `logits` is never asked;
    `pool` holds their K/V."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor], head: Tensor | None, pool: Pool, ops: Ops
    ) -> None:
        self._config = config
        self._layers = [Layer.of(weights, layer) for layer in range(config.layers)]
        self._final_norm = weights.get("model.norm.weight")
        self._head = head
        self._pool = pool
        self._ops = ops
        self.width_invariant = ops.width_invariant
        self.dtype = self._layers[0].q.dtype
        products = [(w.q, w.k, w.v, w.o, w.gate, w.up, w.down) for w in self._layers]
        heads = [] if head is None else [head]
        ops.prepare([*heads, *(weight for layer in products for weight in layer)])

    def plan(self, shares: Sequence[Share]) -> Any:
        return self._ops.plan(shares)

    def run(
        self,
        first: int,
        last: int,
        x: Tensor,
        where: Where,
        plan: Any,
        capture: Collection[int] = (),
        beside: Tensor | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        captured = {}
        for index in range(first, last):
            x = self._layer(index, x, where, plan, beside)
            if index in capture:
                captured[index] = x
        return x, captured

    def _layer(self, index: int, x: Tensor, where: Where, plan: Any, beside: Tensor | None) -> Tensor:
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
        mixed = ops.attend(rotate(q, where.cos, where.sin), keys, values, plan)  # [R, heads · d]
        x = x + ops.linear(mixed, w.o, w.o_bias)
        h = ops.norm(x, w.post_norm, config.norm_eps)
        h = ops.gate(ops.linear(h, w.gate, w.gate_bias), ops.linear(h, w.up, w.up_bias))  # [R, I]
        return x + ops.linear(h, w.down, w.down_bias)

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self._final_norm if weight is None else weight
        assert weight is not None
        return self._ops.norm(x, weight, self._config.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        assert self._head is not None
        return self._ops.linear(x, self._head, None).float()
