"""A decoder on the native kernels: float32 rows, packed weights, one call for a pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.layers import (
    EMBEDDED,
    FURTHER_NORMS,
    HEAD,
    NORMS,
    Ends,
    Ran,
    norm_name,
    started,
    weight_name,
)
from taslak.models.ops import Share
from taslak.models.rope import Rope
from taslak.native import Packed, linear
from taslak.native.build import extension as _native
from taslak.native.tensors import address, check

CACHES = (torch.float32, torch.bfloat16)
"""What K/V may be kept in."""


class NativeLayers:
    """Implements `Layers`.

    weights:  of the layers, by our names: every matrix a product reads is a Packed, norms and biases
              are tensors. Kept, not copied
    ends:     fuse and head are Packed, the embedding is that or a tensor
    pool:     float32 or bfloat16, on the CPU
    """

    width_invariant = True
    dtype = torch.float32

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor | Packed], ends: Ends, pool: Pool
    ) -> None:
        if pool.keys.dtype not in CACHES:
            raise ValueError(f"the cache is {pool.keys.dtype}; expected float32 or bfloat16")
        self._config = config
        self._pool = pool
        self._kept: list[Tensor | Packed] = []  # what the native side knows the address of
        self._ends = ends = replace(
            ends,
            fuse=self._matrix("fuse", ends.fuse),
            fuse_bias=self._vector(ends.fuse_bias),
            norm=self._vector(ends.norm),
            norm_bias=self._vector(ends.norm_bias),
            head=self._matrix("head", ends.head),
            positions=self._table(ends.positions),
        )
        self._ropes = [Rope(rope, config.head_size, self.dtype, pool.keys.device) for rope in config.ropes]
        if len({rope.size for rope in self._ropes}) > 1:
            raise ValueError("layers rotate different shares of a head; expected one")
        self._beside = weights[weight_name(0, "q")].shape[1] - config.hidden_size
        self._layers = _native.Layers(
            self._shape(),
            [self._layer(weights, layer) for layer in range(config.layers)],
            self._native_ends(),
        )

    def _shape(self) -> _native.Shape:
        c = self._config
        return _native.Shape(
            hidden=c.hidden_size,
            inner=c.inner_size,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_size=c.head_size,
            rotary=self._ropes[0].size if self._ropes else 0,
            eps=c.norm_eps,
            activation=c.activation,
            parallel=c.parallel,
            whole_qk_norm=c.qk_norm == "whole",
            attention_scale=c.scale,
            attention_cap=c.attention_cap,
            residual_scale=c.residual_scale,
        )

    def _native_ends(self) -> _native.Ends:
        ends = self._ends
        return _native.Ends(
            embedding=ends.embedding.handle if isinstance(ends.embedding, Packed) else None,
            fuse=None if ends.fuse is None else ends.fuse.handle,
            fuse_bias=address(ends.fuse_bias),
            norm=(address(ends.norm), address(ends.norm_bias)),
            head=None if ends.head is None else ends.head.handle,
            positions=address(ends.positions),
            position_count=0 if ends.positions is None else ends.positions.shape[0],
            embedding_scale=ends.embedding_scale,
            logit_scale=ends.logit_scale,
            logit_cap=ends.logit_cap,
        )

    def _layer(self, weights: Mapping[str, Tensor | Packed], layer: int) -> tuple[Any, ...]:
        """As `_native.Layers` takes it."""
        c = self._config
        whole = c.qk_norm == "whole"
        q, kv = (heads * c.head_size if whole else c.head_size for heads in (c.heads, c.kv_heads))
        sizes = {"q_norm": q, "k_norm": kv}
        norms = [
            tuple(
                address(self._vector(weights.get(norm_name(layer, norm, kind)), sizes.get(norm)))
                for kind in ("weight", "bias")
            )
            for norm in (*NORMS, *FURTHER_NORMS)
        ]
        names = [weight_name(layer, product) for product in c.products]
        matrices = [self._matrix(name, weights[name]).handle for name in names]
        biases = [
            address(self._vector(weights.get(weight_name(layer, product, "bias")), matrix.n))
            for product, matrix in zip(c.products, matrices, strict=True)
        ]
        rotation = c.rotation(layer)
        return norms, matrices, biases, c.window(layer), -1 if rotation is None else rotation

    def _matrix(self, name: str, matrix: Any) -> Any:
        if matrix is not None:
            if not isinstance(matrix, Packed):
                raise ValueError(f"{name} is a {type(matrix).__name__}; expected it packed")
            self._kept.append(matrix)
        return matrix

    def _vector(self, vector: Any, size: int | None = None) -> Any:
        return self._given("a norm or bias", vector, (self._config.hidden_size if size is None else size,))

    def _table(self, table: Any) -> Any:
        return self._given("positions", table, (None, self._config.hidden_size))

    def _given(self, name: str, tensor: Any, shape: tuple[int | None, ...]) -> Any:
        if tensor is not None:
            tensor = check(name, tensor, shape).float().contiguous()
            self._kept.append(tensor)
        return tensor

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
        ends = self._ends
        plan = _native.Plan(
            [(s.block.pages, s.block.length, s.block.parents, [*s.nodes], s.base) for s in shares]
        )
        size = (plan.rows, self._config.hidden_size)
        if hidden is not None:
            hidden = check("hidden", hidden, size, torch.float32).contiguous()
        if tokens and not isinstance(ends.embedding, Packed):  # rows of a tensor are looked up here
            tokens, hidden = (), started(ends, self.embed(torch.tensor(tokens)), hidden, shares, linear)
        if beside is not None:
            beside = check("beside", beside, (plan.rows, self._beside), torch.float32).contiguous()
        outer = EMBEDDED, self._config.layers
        captured = {at: _empty(*size) for at in capture if first <= at < last or at in outer}
        logits = None
        if wanted:
            assert ends.head is not None
            logits = _empty(len(wanted), ends.head.shape[0])
        tables = [rope.table(plan.positions) for rope in self._ropes]
        keys, values = self._pool.keys, self._pool.values
        self._layers.run(
            first,
            last,
            plan,
            tokens,
            address(hidden),
            [(address(cos), address(sin)) for cos, sin in tables],
            tables[0][0].shape[0] if tables else 0,
            address(keys),
            address(values),
            keys.dtype == torch.bfloat16,
            keys.shape[1],
            [(layer + 1, address(tensor)) for layer, tensor in captured.items()],
            address(beside),
            wanted,
            address(logits),
        )
        return Ran(captured, logits)

    def embed(self, tokens: Tensor) -> Tensor:
        embedding = self._ends.embedding
        if isinstance(embedding, Packed):
            return embedding.rows(tokens)
        assert embedding is not None
        return F.embedding(tokens, embedding).float()

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight, bias = self._ends.norm if weight is None else weight, self._ends.norm_bias
        assert weight is not None
        if bias is None:
            return rms_norm(x, weight, self._config.norm_eps)
        return layer_norm(x, weight, bias, self._config.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        ends = self._ends
        assert ends.head is not None
        logits = linear(x.contiguous(), ends.head)
        _native.scale_and_cap(address(logits), logits.numel(), ends.logit_scale, ends.logit_cap)
        return logits


def _empty(rows: int, width: int) -> Tensor:
    """What the kernels write, whatever PyTorch's defaults are set to."""
    return torch.empty((rows, width), dtype=torch.float32, device="cpu")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019). x: Float32[R, H]; weight: Float32[H], contiguous -> [R, H]."""
    x = check("x", x, (None, weight.numel()), torch.float32).contiguous()
    out = torch.empty_like(x)
    _native.rms_norm(address(x), address(weight), eps, x.shape[0], x.shape[1], address(out))
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm (Ba et al. 2016). x: Float32[R, H]; weight, bias: Float32[H], contiguous -> [R, H]."""
    x = check("x", x, (None, weight.numel()), torch.float32).contiguous()
    out = torch.empty_like(x)
    _native.layer_norm(address(x), address(weight), address(bias), eps, x.shape[0], x.shape[1], address(out))
    return out


def pack_weights(
    config: DecoderConfig, weights: Mapping[str, Tensor], kind: str, vocab_size: int | None = None
) -> dict[str, Tensor | Packed]:
    """A checkpoint's tensors with every matrix a product reads packed as `kind` ("bfloat16" or "int8").

    The head is packed of its first `vocab_size` rows, from the embedding where it is tied; the embedding
    stays as it is, for its rows are looked up.
    """
    pack = {"bfloat16": Packed.bfloat16, "int8": Packed.int8}[kind]
    packed: dict[str, Tensor | Packed] = dict(weights)
    for layer in range(config.layers):
        for product in config.products:
            name = weight_name(layer, product)
            packed[name] = pack(weights[name])
    head = weights["model.embed_tokens.weight"] if config.tied else weights[HEAD]
    packed[HEAD] = pack(head[:vocab_size])
    return packed
