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
from taslak.models.layers import EMBEDDED, HEAD, PRODUCTS, Ends, Ran, norm_name, weight_name
from taslak.models.ops import Share
from taslak.models.rope import Rope
from taslak.native import Packed, linear
from taslak.native.build import extension as _native
from taslak.native.tensors import address, check

CACHES = (torch.float32, torch.bfloat16)
"""What K/V may be kept in."""


class NativeLayers:
    """Implements `Layers`.

    weights:  of the layers, by Hugging Face name: every matrix a product reads is a Packed, norms and biases
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
            head=self._matrix("head", ends.head),
        )
        self._rope = Rope(config.rope, config.head_size, self.dtype, pool.keys.device)
        q = weights[weight_name(0, "q")]
        self._beside = q.shape[1] - config.hidden_size
        self._layers = _native.Layers(
            config.hidden_size,
            config.inner_size,
            config.heads,
            config.kv_heads,
            config.head_size,
            config.head_size,
            config.norm_eps,
            [self._layer(weights, layer) for layer in range(config.layers)],
            ends.embedding.handle if isinstance(ends.embedding, Packed) else None,
            None if ends.fuse is None else ends.fuse.handle,
            address(ends.fuse_bias),
            address(ends.norm),
            None if ends.head is None else ends.head.handle,
        )

    def _layer(self, weights: Mapping[str, Tensor | Packed], layer: int) -> tuple[Any, ...]:
        norms = [
            self._vector(weights.get(norm_name(layer, "input_norm"))),
            self._vector(weights[norm_name(layer, "post_norm")]),
        ]
        names = [weight_name(layer, product) for product in PRODUCTS]
        matrices = [self._matrix(name, weights[name]).handle for name in names]
        biases = [
            self._vector(weights.get(weight_name(layer, product, "bias")), matrix.n)
            for product, matrix in zip(PRODUCTS, matrices, strict=True)
        ]
        return (*map(address, norms), matrices, [*map(address, biases)])

    def _matrix(self, name: str, matrix: Any) -> Any:
        if matrix is not None:
            if not isinstance(matrix, Packed):
                raise ValueError(f"{name} is a {type(matrix).__name__}; expected it packed")
            self._kept.append(matrix)
        return matrix

    def _vector(self, vector: Any, size: int | None = None) -> Any:
        if vector is not None:
            size = self._config.hidden_size if size is None else size
            vector = check("a norm or bias", vector, (size,)).float().contiguous()
            self._kept.append(vector)
        return vector

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
        plan = _native.Plan(
            [(s.block.pages, s.block.length, s.block.parents, [*s.nodes], s.base) for s in shares]
        )
        size = (plan.rows, self._config.hidden_size)
        if hidden is not None:
            hidden = check("hidden", hidden, size, torch.float32).contiguous()
        if tokens and not isinstance(self._ends.embedding, Packed):  # rows of a tensor are looked up here
            tokens, hidden = (), self._start(torch.tensor(tokens), hidden)
        if beside is not None:
            beside = check("beside", beside, (plan.rows, self._beside), torch.float32).contiguous()
        ends = EMBEDDED, self._config.layers
        captured = {at: _empty(*size) for at in capture if first <= at < last or at in ends}
        logits = None
        if wanted:
            assert self._ends.head is not None
            logits = _empty(len(wanted), self._ends.head.shape[0])
        cos, sin = self._rope.table(plan.positions)
        keys, values = self._pool.keys, self._pool.values
        self._layers.run(
            first,
            last,
            plan,
            tokens,
            address(hidden),
            address(cos),
            address(sin),
            cos.shape[0],
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

    def _start(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """What the first layer reads. -> [R, H]."""
        x = self.embed(tokens)
        if hidden is None:
            return x
        assert self._ends.fuse is not None
        return linear(torch.cat((x, hidden), dim=-1), self._ends.fuse, self._ends.fuse_bias)

    def embed(self, tokens: Tensor) -> Tensor:
        embedding = self._ends.embedding
        if isinstance(embedding, Packed):
            return embedding.rows(tokens)
        assert embedding is not None
        return F.embedding(tokens, embedding).float()

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self._ends.norm if weight is None else weight
        assert weight is not None
        return rms_norm(x, weight, self._config.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        assert self._ends.head is not None
        return linear(x.contiguous(), self._ends.head)


def _empty(rows: int, width: int) -> Tensor:
    """What the kernels write, whatever PyTorch's defaults are set to."""
    return torch.empty((rows, width), dtype=torch.float32, device="cpu")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019). x: Float32[R, H]; weight: Float32[H], contiguous -> [R, H]."""
    x = check("x", x, (None, weight.numel()), torch.float32).contiguous()
    out = torch.empty_like(x)
    _native.rms_norm(address(x), address(weight), eps, x.shape[0], x.shape[1], address(out))
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
        for product in PRODUCTS:
            name = weight_name(layer, product)
            packed[name] = pack(weights[name])
    head = weights["model.embed_tokens.weight"] if config.tied else weights[HEAD]
    packed[HEAD] = pack(head[:vocab_size])
    return packed
