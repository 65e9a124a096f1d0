"""One decoder for the llama-like families, configured by data. It implements Target.

Knows nothing about files, text or drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taslak.models.cache import Block, Pool
from taslak.models.config import DecoderConfig
from taslak.models.kernels import Kernels, NativeKernels, TorchKernels
from taslak.models.layers import EMBEDDED, HEAD, Ends, Layers, Ran, weight_name
from taslak.models.native_ops import NativeLayers
from taslak.models.ops import Quick, Share
from taslak.models.reference import Reference
from taslak.models.target import Output, Rows, wanted_rows
from taslak.models.torch_layers import TorchLayers
from taslak.native import Packed

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"


def layer_feature(layer: int) -> str:
    """The capture name of a layer's output."""
    return f"layer.{layer}"


@dataclass(frozen=True, slots=True)
class _Segment:
    """A run of layers with one set of rows, Int64[picked]."""

    first: int
    last: int
    rows: Tensor
    shares: list[Share]


class Decoder:
    """Embedding, layers, final norm, lm_head; a paged cache shared by all its sequences.

    weights:      by our names (`loading.adopt`), shapes as `config.tensors()`; kept, not copied (files may be
                  mapped). Where matrices are packed the native kernels run, else PyTorch. An embedding may be
                  either: rows of a packed one are looked up as they lie, and it may be the head too
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
        embedding = weights["model.embed_tokens.weight"]
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
        self.pass_bytes = self.weight_bytes - (embedding.nbytes if HEAD in weights else 0)
        self._layers: Layers
        self.kernels: Kernels
        if native:
            head = weights.get(HEAD, embedding)
            if isinstance(head, Packed):
                head = head.first(min(self.vocab_size, head.shape[0]))
            self.ends = Ends.of(config, embedding, tensors, head)
            self._layers = NativeLayers(config, weights, self.ends, self.pool)
            inner = weights[weight_name(0, "down")]
            wide = isinstance(inner, Packed) and inner.kind == "bfloat16"
            self.kernels = NativeKernels("bfloat16" if wide else "int8")
        else:
            rows = tensors["model.embed_tokens.weight" if config.tied else HEAD][: self.vocab_size]
            ops = Reference(self.device) if exact else Quick(dtype, self.device)
            self.ends = Ends.of(config, embedding, tensors, rows)
            self._layers = TorchLayers(config, tensors, self.ends, self.pool, ops)
            self.kernels = TorchKernels(rows.dtype, self.device)
        self._points = {EMBEDDING: EMBEDDED, FINAL_NORM: self.layers}
        self._points |= {layer_feature(layer): layer for layer in range(self.layers)}
        self.width_invariant = self._layers.width_invariant

    def allocate(self, positions: int, shared: Sequence[int] = ()) -> Block:
        return self.pool.allocate(positions, shared)

    def forward(
        self, batch: Sequence[Rows], layers: tuple[int, int] | None = None, capture: Sequence[str] = ()
    ) -> Output:
        first, last = layers or (0, self.layers)
        for rows in batch:
            new = rows.first + len(rows.tokens) - rows.cache.nodes
            rows.cache.add(rows.parents[len(rows.parents) - new :] if new > 0 else ())
        nodes = [_nodes(rows) for rows in batch]
        tokens = [token for rows in batch for token in rows.tokens]
        names = {self._points[name]: name for name in capture}
        points = _within(names, first, last, self.layers)
        points += [EMBEDDED] if EMBEDDED in names else []
        wanted = wanted_rows(batch) if last == self.layers else []
        if any(start > first for rows in batch for start in rows.starts):
            segments = self._segments(batch, nodes, first, last)
            ran = self._join(tokens, batch, segments, points, wanted)
        else:
            shares = [Share(rows.cache, numbers) for rows, numbers in zip(batch, nodes, strict=True)]
            ran = self._layers.run(first, last, shares, tokens=tokens, capture=points, wanted=wanted)
        logits = torch.empty((0, self.vocab_size), device=self.device) if ran.logits is None else ran.logits
        return Output(logits, {names[point]: hidden for point, hidden in ran.captured.items()})

    def embed(self, tokens: Tensor) -> Tensor:
        return self._layers.embed(tokens)

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return self._layers.norm(x, weight)

    def logits(self, x: Tensor) -> Tensor:
        return self._layers.logits(x)

    def unembedding(self, ids: Tensor) -> Tensor:
        head: Tensor | Packed | None = self.ends.head
        assert head is not None
        rows = head.rows(ids) if isinstance(head, Packed) else head[ids]
        return rows if self.ends.logit_scale == 1.0 else rows * self.ends.logit_scale

    def _segments(
        self, batch: Sequence[Rows], nodes: Sequence[range], first: int, last: int
    ) -> list[_Segment]:
        """Layers [first, last), cut where rows join that start above the first."""
        starts = [start for rows in batch for start in (rows.starts or (first,) * len(rows.tokens))]
        joints = sorted({max(start, first) for start in starts if start < last})
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

    def _join(
        self,
        tokens: Sequence[int],
        batch: Sequence[Rows],
        segments: Sequence[_Segment],
        points: Sequence[int],
        wanted: Sequence[int],
    ) -> Ran:
        """Segment after segment, each with the rows that have joined; in the last one these are all."""
        everywhere = [Share(rows.cache, _nodes(rows)) for rows in batch]
        x = self._layers.run(0, 0, everywhere, tokens=tokens, capture=(EMBEDDED,)).captured[
            EMBEDDED
        ]  # [R, H]
        captured = {EMBEDDED: x} if EMBEDDED in points else {}
        logits: Tensor | None = None
        for segment in segments:
            pick, end = segment.rows, segment.last - 1
            ran = self._layers.run(
                segment.first,
                segment.last,
                segment.shares,
                hidden=_resumed(x[pick], batch, pick, segment.first),
                capture={end, *_within(points, segment.first, segment.last, self.layers)},
                wanted=wanted if segment.last == self.layers else (),
            )
            captured.update((point, x.index_copy(0, pick, hidden)) for point, hidden in ran.captured.items())
            x = captured[end] if end in points else captured.pop(end)
            logits = ran.logits
        return Ran(captured, logits)


def _nodes(rows: Rows) -> range:
    return range(rows.first, rows.first + len(rows.tokens))


def _within(points: Iterable[int], first: int, last: int, layers: int) -> list[int]:
    """Those of the layers [first, last), and the last norm behind the last of all."""
    return [point for point in points if first <= point < last or point == last == layers]


def _resumed(y: Tensor, batch: Sequence[Rows], pick: Tensor, joint: int) -> Tensor:
    """Put the given hidden states into the rows that join at this layer. y: [picked, H]."""
    place = {int(row): i for i, row in enumerate(pick)}
    row = 0
    for rows in batch:
        for i, start in enumerate(rows.starts):
            if start == joint and joint > 0 and rows.hidden is not None:
                y[place[row + i]] = rows.hidden[i]
        row += len(rows.tokens)
    return y
