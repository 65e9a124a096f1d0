"""One decoder for the llama-like families, configured by data. It implements Target.

Knows nothing about files, text or drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Block, Pool
from taslak.models.config import DecoderConfig
from taslak.models.kernels import Kernels, NativeKernels, TorchKernels
from taslak.models.layers import HEAD, Layers, TorchLayers, Where, weight_name
from taslak.models.native_ops import NativeLayers
from taslak.models.ops import Quick, Share
from taslak.models.reference import Reference
from taslak.models.rope import Rope
from taslak.models.target import Output, Rows
from taslak.native import Packed

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"


def layer_feature(layer: int) -> str:
    """The capture name of a layer's output."""
    return f"layer.{layer}"


@dataclass(slots=True)
class _Segment:
    """A run of layers with one set of rows. `rows` None = all of them."""

    first: int
    last: int
    rows: Tensor | None
    shares: list[Share]


class Decoder:
    """Embedding, layers, final norm, lm_head; a paged cache shared by all its sequences.

    weights:      Hugging Face names, shapes as `config.tensors()`; kept, not copied (files may be mapped).
                  Where matrices are packed the native kernels run, else PyTorch. An embedding may be either
                  there: rows of a packed one are looked up as they lie, and it may be the head too
    vocab_size:   token ids a draw may give; the lm_head's rows from there on are padding and never computed
    exact:        in PyTorch, the reference mode (width-invariant) instead of the quick path
    cache_dtype:  of K/V in packed models; None = the embedding's, which it always is in PyTorch
    cache_bytes:  most memory the K/V cache may take, None = no bound
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor | Packed],
        *,
        vocab_size: int | None = None,
        exact: bool = False,
        cache_dtype: torch.dtype | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.config = config
        tensors = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}
        self._embedding = weights["model.embed_tokens.weight"]
        self.vocab_size = min(vocab_size or config.vocab_size, config.vocab_size)
        self.padded_vocab_size = config.vocab_size
        self.context = config.context
        self.layers = config.layers
        self.hidden_size = config.hidden_size
        native = len(tensors) < len(weights)
        like = tensors.get("model.embed_tokens.weight", tensors["model.norm.weight"])
        self.device = like.device
        dtype = cache_dtype if native and cache_dtype is not None else like.dtype
        self.pool = Pool(config.layers, config.kv_heads, config.head_size, dtype, self.device, cache_bytes)
        self.dtype = dtype
        self.cache_limit = self.pool.limit
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        # beside a head of its own, rows of the embedding are looked up, and the table isn't read
        self.pass_bytes = self.weight_bytes - (self._embedding.nbytes if HEAD in weights else 0)
        self._layers: Layers
        self.kernels: Kernels
        if native:
            head = weights.get(HEAD, self._embedding)
            if isinstance(head, Packed):
                head = head.first(min(self.vocab_size, head.shape[0]))
            self._layers = NativeLayers(config, {**weights, HEAD: head}, self.pool)
            inner = weights[weight_name(0, "down")]
            wide = isinstance(inner, Packed) and inner.kind == "bfloat16"
            self.kernels = NativeKernels("bfloat16" if wide else "int8")
            self._head: Tensor | Packed = head
        else:
            rows = tensors["model.embed_tokens.weight" if config.tied else HEAD][: self.vocab_size]
            ops = Reference(self.device) if exact else Quick(dtype, self.device)
            self._layers = TorchLayers(config, tensors, rows, self.pool, ops)
            self.kernels = TorchKernels(rows.dtype, self.device)
            self._head = rows
        self._rope = Rope(config.rope, config.head_size, self._layers.dtype, self.device)
        self.width_invariant = self._layers.width_invariant

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
        ids = [token for rows in batch for token in rows.tokens]
        # one tensor: making one takes as long as everything else that is done with it
        tokens, positions, slots = torch.tensor(
            [ids, [position for position, _ in at], [slot for _, slot in at]], device=self.device
        )

        x = self.embed(tokens)  # [R, H]
        features: dict[str, Tensor] = {EMBEDDING: x} if EMBEDDING in capture else {}
        where = Where(*self._rope.at(positions, max(position for position, _ in at)), slots)
        names = {index: name for index in range(first, last) if (name := layer_feature(index)) in capture}
        for segment in self._segments(batch, nodes, first, last):
            plan = self._layers.plan(segment.shares)
            pick = segment.rows
            if pick is None:
                x, captured = self._layers.run(segment.first, segment.last, x, where, plan, names)
            else:
                y = self._resumed(x[pick], batch, pick, segment.first)
                y, captured = self._layers.run(segment.first, segment.last, y, where.pick(pick), plan, names)
                captured = {layer: x.index_copy(0, pick, h) for layer, h in captured.items()}
                x = x.index_copy(0, pick, y)
            features.update((names[layer], hidden) for layer, hidden in captured.items())
        if last < self.layers:
            return Output(x.new_empty((0, self.vocab_size)).float(), features)
        return self._finish(x, batch, features, FINAL_NORM in capture)

    def embed(self, tokens: Tensor) -> Tensor:
        if isinstance(self._embedding, Packed):
            return self._embedding.rows(tokens)
        return F.embedding(tokens, self._embedding).to(self._layers.dtype)

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return self._layers.norm(x, weight)

    def logits(self, x: Tensor) -> Tensor:
        return self._layers.logits(x)

    def unembedding(self, ids: Tensor) -> Tensor:
        head = self._head
        return head.rows(ids) if isinstance(head, Packed) else head[ids]

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
            x = features[FINAL_NORM] = self._layers.norm(x)
        if len(wanted) < x.shape[0]:
            x = x[wanted]
        if not wanted:
            return Output(x.new_empty((0, self.vocab_size)).float(), features)
        return Output(self._layers.logits(x if keep_norm else self._layers.norm(x)), features)

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
