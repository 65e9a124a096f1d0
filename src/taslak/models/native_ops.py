"""A decoder's layers on the native kernels: float32 rows, packed weights, one call for a range of layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.layers import HEAD, PRODUCTS, Where, norm_name, weight_name
from taslak.models.ops import Share
from taslak.native import Packed, linear
from taslak.native.build import extension as _native
from taslak.native.tensors import address, check

if TYPE_CHECKING:
    from taslak._native import Plan

CACHES = (torch.float32, torch.bfloat16)
"""What K/V may be kept in."""


class NativeLayers:
    """Implements `Layers`.

    weights:  Hugging Face names; every matrix a product reads is a Packed, the head (tied or not) included,
              norms and biases are tensors. Kept, not copied. The head and the last norm may be left out where
              `logits` and `norm` are never asked.
    pool:     float32 or bfloat16, on the CPU
    """

    width_invariant = True
    dtype = torch.float32

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor | Packed], pool: Pool) -> None:
        if pool.keys.dtype not in CACHES:
            raise ValueError(f"the cache is {pool.keys.dtype}; expected float32 or bfloat16")
        self._config = config
        self._pool = pool
        self._kept: list[Tensor | Packed] = []  # what the native side knows the address of
        self._head = self._matrix(weights, HEAD) if HEAD in weights else None
        self._final_norm = self._vector(weights.get("model.norm.weight"))
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
        )

    def _layer(self, weights: Mapping[str, Tensor | Packed], layer: int) -> tuple[Any, ...]:
        norms = [
            self._vector(weights.get(norm_name(layer, "input_norm"))),
            self._vector(weights[norm_name(layer, "post_norm")]),
        ]
        matrices = [self._matrix(weights, weight_name(layer, product)).handle for product in PRODUCTS]
        biases = [
            self._vector(weights.get(weight_name(layer, product, "bias")), matrix.n)
            for product, matrix in zip(PRODUCTS, matrices, strict=True)
        ]
        return (*map(address, norms), matrices, [*map(address, biases)])

    def _matrix(self, weights: Mapping[str, Tensor | Packed], name: str) -> Packed:
        matrix = weights[name]
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

    def plan(self, shares: Sequence[Share]) -> Plan:
        return _native.Plan(
            [(share.block.pages, share.block.length, share.block.parents, [*share.nodes]) for share in shares]
        )

    def run(
        self,
        first: int,
        last: int,
        x: Tensor,
        where: Where,
        plan: Plan,
        capture: Collection[int] = (),
        beside: Tensor | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        size = (plan.rows, self._config.hidden_size)
        x = check("x", x, size, torch.float32).clone(memory_format=torch.contiguous_format)
        cos, sin = (t.reshape(plan.rows, self._config.head_size).contiguous() for t in (where.cos, where.sin))
        captured = {layer: torch.empty_like(x) for layer in capture if first <= layer < last}
        if beside is not None:
            beside = check("beside", beside, (plan.rows, self._beside), torch.float32).contiguous()
        keys, values = self._pool.keys, self._pool.values
        self._layers.run(
            first,
            last,
            plan,
            address(x),
            address(cos),
            address(sin),
            address(keys),
            address(values),
            keys.dtype == torch.bfloat16,
            keys.shape[1],
            [(layer, address(tensor)) for layer, tensor in captured.items()],
            address(beside),
        )
        return x, captured

    def norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        weight = self._final_norm if weight is None else weight
        assert weight is not None
        return rms_norm(x, weight, self._config.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        assert self._head is not None
        return linear(x.contiguous(), self._head)


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
