"""One decoder for the llama-like families, configured by data. It implements Target.

Knows nothing about files, text or drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Block, Pool
from taslak.models.config import DecoderConfig
from taslak.models.ops import Ops, Quick, Share
from taslak.models.reference import Reference
from taslak.models.rope import Rope, rotate
from taslak.models.target import Output, Rows

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"


def layer_feature(layer: int) -> str:
    """The capture name of a layer's output."""
    return f"layer.{layer}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights [out, in], biases [out] or None."""

    input_norm: Tensor
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
        at = f"model.layers.{layer}."
        parts = {"q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn"}
        parts |= {"gate": "mlp", "up": "mlp", "down": "mlp"}
        fields: dict[str, Any] = {}
        for name, part in parts.items():
            fields[name] = weights[f"{at}{part}.{name}_proj.weight"]
            fields[f"{name}_bias"] = weights.get(f"{at}{part}.{name}_proj.bias")
        return cls(
            input_norm=weights[f"{at}input_layernorm.weight"],
            post_norm=weights[f"{at}post_attention_layernorm.weight"],
            **fields,
        )


@dataclass(slots=True)
class _Segment:
    """A run of layers with one set of rows. `rows` None = all of them."""

    first: int
    last: int
    rows: Tensor | None
    shares: list[Share]


class Decoder:
    """Embedding, layers, final norm, lm_head; a paged cache shared by all its sequences.

    weights:     Hugging Face names, shapes as `config.tensors()`; kept, not copied (files may be mapped)
    vocab_size:  token ids a draw may give; the lm_head's rows from there on are padding and never computed
    exact:       the reference mode (width-invariant) instead of the quick path
    cache_bytes: most memory the K/V cache may take, None = no bound
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        *,
        vocab_size: int | None = None,
        exact: bool = False,
        cache_bytes: int | None = None,
    ) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._final_norm = weights["model.norm.weight"]
        self.vocab_size = min(vocab_size or config.vocab_size, config.vocab_size)
        head = self._embedding if config.tied else weights["lm_head.weight"]
        self._head = head[: self.vocab_size]
        self._layers = [Layer.of(weights, layer) for layer in range(config.layers)]
        self.context = config.context
        self.layers = config.layers
        self.hidden_size = config.hidden_size
        self.device = self._embedding.device
        self.dtype = self._embedding.dtype
        self.pool = Pool(
            config.layers, config.kv_heads, config.head_size, self.dtype, self.device, cache_bytes
        )
        self.cache_limit = self.pool.limit
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        self._rope = Rope(config.rope, config.head_size, self.dtype, self.device)
        self._ops: Ops = Reference(self.device) if exact else Quick(self.dtype, self.device)
        self._ops.prepare([*self._matrices()])
        self.width_invariant = self._ops.width_invariant

    def _matrices(self) -> list[Tensor]:
        layers = [(w.q, w.k, w.v, w.o, w.gate, w.up, w.down) for w in self._layers]
        return [self._head, *(weight for layer in layers for weight in layer)]

    def allocate(self, positions: int) -> Block:
        return self.pool.allocate(positions)

    @torch.inference_mode()
    def forward(
        self, batch: Sequence[Rows], layers: tuple[int, int] | None = None, capture: Sequence[str] = ()
    ) -> Output:
        first, last = layers or (0, self.layers)
        for rows in batch:
            new = rows.first + len(rows.tokens) - rows.cache.nodes
            rows.cache.add(rows.parents[len(rows.parents) - new :] if new > 0 else ())
        nodes = [range(rows.first, rows.first + len(rows.tokens)) for rows in batch]
        at = [
            (rows.cache.length + rows.cache.depths[node], rows.cache.slot(rows.cache.length + node))
            for rows, numbers in zip(batch, nodes, strict=True)
            for node in numbers
        ]
        tokens = torch.tensor([token for rows in batch for token in rows.tokens], device=self.device)
        positions = torch.tensor([position for position, _ in at], device=self.device)
        slots = torch.tensor([slot for _, slot in at], device=self.device)

        x = F.embedding(tokens, self._embedding)  # [R, H]
        features: dict[str, Tensor] = {EMBEDDING: x} if EMBEDDING in capture else {}
        cos, sin = self._rope.at(positions)  # [R, 1, d]
        for segment in self._segments(batch, nodes, first, last):
            plan = self._ops.plan(segment.shares)
            pick = segment.rows
            y, *where = (x, cos, sin, slots) if pick is None else (t[pick] for t in (x, cos, sin, slots))
            if pick is not None:
                y = self._resumed(y, batch, pick, segment.first)
            for index in range(segment.first, segment.last):
                y = self._layer(index, y, where, plan)
                if (name := layer_feature(index)) in capture:
                    features[name] = y if pick is None else x.index_copy(0, pick, y)
            x = y if pick is None else x.index_copy(0, pick, y)
        if last < self.layers:
            return Output(x.new_empty((0, self.vocab_size)).float(), features)
        return self._finish(x, batch, features, FINAL_NORM in capture)

    def _layer(self, index: int, x: Tensor, where: Sequence[Tensor], plan: Any) -> Tensor:
        """One transformer block; writes the rows' K/V before anyone reads it. x: [R, H] -> [R, H].

        where: the rows' rotation (cos, sin: [R, 1, d]) and cache slots (Int64[R]).
        """
        cos, sin, slots = where
        w, ops, config = self._layers[index], self._ops, self.config
        rows = x.shape[0]
        h = ops.norm(x, w.input_norm, config.norm_eps)
        q = ops.linear(h, w.q, w.q_bias).view(rows, config.heads, config.head_size)
        k = ops.linear(h, w.k, w.k_bias).view(rows, config.kv_heads, config.head_size)
        v = ops.linear(h, w.v, w.v_bias).view(rows, config.kv_heads, config.head_size)
        keys, values = self.pool.keys[index], self.pool.values[index]  # [slots, kv heads, d]
        keys[slots] = rotate(k, cos, sin)
        values[slots] = v
        mixed = ops.attend(rotate(q, cos, sin), keys, values, plan)  # [R, heads · d]
        x = x + ops.linear(mixed, w.o, w.o_bias)
        h = ops.norm(x, w.post_norm, config.norm_eps)
        h = ops.gate(ops.linear(h, w.gate, w.gate_bias), ops.linear(h, w.up, w.up_bias))  # [R, I]
        return x + ops.linear(h, w.down, w.down_bias)

    def _finish(
        self, x: Tensor, batch: Sequence[Rows], features: dict[str, Tensor], keep_norm: bool
    ) -> Output:
        """Final norm and logits of the wanted rows. x: [R, H]."""
        wanted: list[int] = []
        end = 0
        for rows in batch:
            end += len(rows.tokens)
            wanted += range(end - rows.wanted, end)
        if keep_norm:
            x = features[FINAL_NORM] = self._ops.norm(x, self._final_norm, self.config.norm_eps)
        if len(wanted) < x.shape[0]:
            x = x[wanted]
        if not wanted:
            return Output(x.new_empty((0, self.vocab_size)).float(), features)
        if not keep_norm:
            x = self._ops.norm(x, self._final_norm, self.config.norm_eps)
        return Output(self._ops.linear(x, self._head, None).float(), features)

    def _segments(
        self, batch: Sequence[Rows], nodes: Sequence[range], first: int, last: int
    ) -> list[_Segment]:
        """Cut layers [first, last) where rows join that start above the first layer."""
        starts = [s for rows in batch for s in (rows.starts or (first,) * len(rows.tokens))]
        joints = sorted({max(s, first) for s in starts if s < last})
        if joints == [first] and max(starts) <= first:
            shares = [Share(rows.cache, numbers) for rows, numbers in zip(batch, nodes, strict=True)]
            return [_Segment(first, last, None, shares)]
        segments = []
        for joint, end in zip(joints, [*joints[1:], last], strict=True):
            picked: list[int] = []
            shares = []
            row = 0
            for rows, numbers in zip(batch, nodes, strict=True):
                active = [i for i in range(len(numbers)) if starts[row + i] <= joint]
                picked += [row + i for i in active]
                if active:
                    shares.append(Share(rows.cache, [numbers[i] for i in active]))
                row += len(numbers)
            segments.append(_Segment(joint, end, torch.tensor(picked, device=self.device), shares))
        return segments

    def _resumed(self, y: Tensor, batch: Sequence[Rows], pick: Tensor, joint: int) -> Tensor:
        """Put the given hidden states into the rows that join at this layer. y: [picked, H]."""
        place = {int(row): i for i, row in enumerate(pick)}
        row = 0
        for rows in batch:
            for i, start in enumerate(rows.starts):
                if start == joint and joint > 0 and rows.hidden is not None:
                    y[place[row + i]] = rows.hidden[i]
            row += len(rows.tokens)
        return y
