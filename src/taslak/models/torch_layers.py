"""A decoder's layers in PyTorch, the arithmetic done by `ops`: quick, or the reference mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.layers import (
    EMBEDDED,
    FURTHER_NORMS,
    NORMS,
    PRODUCTS,
    Ends,
    Ran,
    norm_name,
    started,
    weight_name,
)
from taslak.models.ops import Ops, Share
from taslak.models.rope import Rope, rotate


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights [out, in], biases [out] or None; norms [H] or None, those of q and k [d] or their whole width.
    Without an input norm q, k and v read the rows as they are. Without a gate the MLP's rows are activated.

    window:   positions a row sees, 0 = all
    rotation: which of the model's, None = nothing is rotated
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor | None
    up: Tensor
    down: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    o_bias: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None
    input_norm: Tensor | None
    post_norm: Tensor | None
    input_norm_bias: Tensor | None
    post_norm_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_norm: Tensor | None
    down_norm: Tensor | None
    window: int
    rotation: int | None

    @classmethod
    def of(cls, config: DecoderConfig, weights: Mapping[str, Tensor], layer: int) -> Layer:
        fields: dict[str, Any] = {}
        for name in PRODUCTS:
            fields[name] = weights.get(weight_name(layer, name))
            fields[f"{name}_bias"] = weights.get(weight_name(layer, name, "bias"))
        for name in NORMS:
            fields[name] = weights.get(norm_name(layer, name))
            fields[f"{name}_bias"] = weights.get(norm_name(layer, name, "bias"))
        for name in FURTHER_NORMS:
            fields[name] = weights.get(norm_name(layer, name))
        return cls(**fields, window=config.window(layer), rotation=config.rotation(layer))


@dataclass(frozen=True, slots=True)
class _Where:
    """Where the rows of a pass stand.

    turns:  for each way to rotate, cos and sin, Float[R, 1, r] each, of each row's position
    slots:  Int64[R], cache slots of the rows' own K/V
    plan:   what `Ops.attend` needs to know
    """

    turns: list[tuple[Tensor, Tensor]]
    slots: Tensor
    plan: Any


class TorchLayers:
    """In PyTorch, the arithmetic done by `ops`. `pool` holds the K/V; weights: by our names."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor], ends: Ends, pool: Pool, ops: Ops
    ) -> None:
        self._config = config
        self._layers = [Layer.of(config, weights, layer) for layer in range(config.layers)]
        self._ends = ends
        self._pool = pool
        self._ops = ops
        self.width_invariant = ops.width_invariant
        self.dtype = self._layers[0].q.dtype
        self._ropes = [Rope(rope, config.head_size, self.dtype, pool.keys.device) for rope in config.ropes]
        self._windows = sorted({layer.window for layer in self._layers})
        products = [getattr(layer, name) for layer in self._layers for name in config.products]
        outer = [matrix for matrix in (ends.fuse, ends.head) if matrix is not None]
        ops.prepare([*outer, *products])

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
        if tokens:
            embedded = self.embed(torch.tensor(tokens, device=self._pool.keys.device))
            hidden = started(self._ends, embedded, hidden, shares, self._ops.linear)
        assert hidden is not None
        x = hidden
        captured = {EMBEDDED: x} if EMBEDDED in capture else {}
        if first < last:
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

    def _where(self, shares: Sequence[Share]) -> _Where:
        positions = [position for share in shares for position in share.positions()]
        slots = [slot for share in shares for slot in share.slots()]
        # one tensor: making one takes as long as everything else that is done with it
        at, own = torch.tensor([positions, slots], device=self._pool.keys.device)
        tables = [rope.table(max(positions) + 1) for rope in self._ropes]
        turns = [(cos[at][:, None], sin[at][:, None]) for cos, sin in tables]
        return _Where(turns, own, self._ops.plan(shares, self._windows))

    def embed(self, tokens: Tensor) -> Tensor:
        assert self._ends.embedding is not None
        return F.embedding(tokens, self._ends.embedding).to(self.dtype)

    def _layer(self, index: int, x: Tensor, where: _Where, beside: Tensor | None) -> Tensor:
        """One transformer block. x: [R, H] -> [R, H]."""
        w, config = self._layers[index], self._config
        h = self._normed(x, w.input_norm, w.input_norm_bias)
        if beside is not None:
            h = torch.cat((beside, h), dim=-1)  # [R, B + H]
        after = x + self._behind(self._attention(index, h, where), w.o_norm)
        read = x if config.parallel else after  # by the MLP
        return after + self._behind(
            self._mlp(w, self._normed(read, w.post_norm, w.post_norm_bias)), w.down_norm
        )

    def _attention(self, index: int, h: Tensor, where: _Where) -> Tensor:
        """h: what q, k and v read, [R, B + H] -> [R, H]."""
        w, ops, config = self._layers[index], self._ops, self._config
        q = self._heads(ops.linear(h, w.q, w.q_bias), w.q_norm, config.heads)
        k = self._heads(ops.linear(h, w.k, w.k_bias), w.k_norm, config.kv_heads)
        v = ops.linear(h, w.v, w.v_bias).view(k.shape)
        if w.rotation is not None:
            turn = where.turns[w.rotation]
            q, k = rotate(q, *turn), rotate(k, *turn)
        keys, values = self._pool.keys[index], self._pool.values[index]  # [slots, kv heads, d]
        keys[where.slots] = k
        values[where.slots] = v
        scale, cap = config.scale, config.attention_cap
        mixed = ops.attend(q, keys, values, where.plan, scale, window=w.window, cap=cap)  # [R, heads · d]
        return ops.linear(mixed, w.o, w.o_bias)

    def _heads(self, x: Tensor, norm: Tensor | None, heads: int) -> Tensor:
        """q or k, normed where they are. [R, heads · d] -> [R, heads, d]."""
        eps, split = self._config.norm_eps, (x.shape[0], heads, self._config.head_size)
        if norm is None:
            return x.view(split)
        if self._config.qk_norm == "whole":
            return self._ops.norm(x, norm, eps).view(split)
        return self._ops.norm(x.view(split), norm, eps)

    def _mlp(self, w: Layer, h: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        ops, kind = self._ops, self._config.activation
        up = ops.linear(h, w.up, w.up_bias)  # [R, I]
        if w.gate is None:
            inner = ops.activate(kind, up)
        else:
            inner = ops.activate(kind, ops.linear(h, w.gate, w.gate_bias)).mul_(up)
        return ops.linear(inner, w.down, w.down_bias)

    def _behind(self, x: Tensor, norm: Tensor | None) -> Tensor:
        """What is added to the residual. [R, H] -> [R, H]."""
        x = x if norm is None else self._ops.norm(x, norm, self._config.norm_eps)
        return x if self._config.residual_scale == 1.0 else x * self._config.residual_scale

    def _normed(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """[R, H] -> [R, H]; without a weight x itself."""
        if weight is None:
            return x
        if bias is None:
            return self._ops.norm(x, weight, self._config.norm_eps)
        return self._ops.layer_norm(x, weight, bias, self._config.norm_eps)

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return self._normed(x, self._ends.norm if weight is None else weight, self._ends.norm_bias)

    def logits(self, x: Tensor) -> Tensor:
        ends = self._ends
        assert ends.head is not None
        logits = self._ops.linear(x, ends.head, None).float()
        if ends.logit_scale != 1.0:
            logits = logits * ends.logit_scale
        return self._ops.cap(logits, ends.logit_cap) if ends.logit_cap else logits
