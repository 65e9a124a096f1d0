"""How a small network beside a model computes: in the model's own kernels, its weights packed as the model's.

`TorchKernels` and `NativeKernels`, both of `Kernels`.

Always the quick path: what a head computes can cost acceptance, never a bit of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from taslak.models.cache import Pool
from taslak.models.config import DecoderConfig
from taslak.models.layers import Ends, Layers, Matrix, weight_name
from taslak.models.native_ops import NativeLayers, rms_norm
from taslak.models.ops import Quick
from taslak.models.torch_layers import TorchLayers
from taslak.native import Packed, linear
from taslak.native.packed import GROUP


class Kernels(Protocol):
    """All rows have `dtype`."""

    dtype: torch.dtype
    device: torch.device

    def vector(self, weight: Tensor) -> Tensor:
        """A norm's or bias's weight, ready for `norm`, `linear` and `layers`."""
        ...

    def pack(self, weight: Tensor) -> Matrix:
        """A floating matrix [N, K], ready for `linear`."""
        ...

    def pack_unembedding(self, weight: Tensor) -> Matrix:
        """The same for a matrix whose results are only ranked."""
        ...

    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        """x: [R, K] -> [R, N]."""
        ...

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm. [R, H] -> [R, H]."""
        ...

    def layers(self, config: DecoderConfig, weights: Mapping[str, Tensor], ends: Ends, pool: Pool) -> Layers:
        """From floating tensors under Hugging Face names; what is in `ends` is ready to be read."""
        ...


class TorchKernels:
    """PyTorch, in the model's dtype, on its device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._ops = Quick(dtype, device)

    def vector(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype).contiguous()

    pack = pack_unembedding = vector

    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        return self._ops.linear(x, weight, bias)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._ops.norm(x, weight, eps)

    def layers(self, config: DecoderConfig, weights: Mapping[str, Tensor], ends: Ends, pool: Pool) -> Layers:
        return TorchLayers(config, {n: self.vector(w) for n, w in weights.items()}, ends, pool, self._ops)


class NativeKernels:
    """The native kernels: float32 rows, matrices packed as `kind` ("bfloat16" or "int8"); beside int8 an
    unembedding in 4 bits."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def vector(self, weight: Tensor) -> Tensor:
        return weight.cpu().float().contiguous()

    def pack(self, weight: Tensor) -> Matrix:
        if self.kind == "int8" and weight.shape[1] % GROUP == 0:
            return Packed.int8(weight.cpu())
        return Packed.bfloat16(weight.cpu())

    def pack_unembedding(self, weight: Tensor) -> Matrix:
        # half of what a head reads in a step; at 4 bits the order of the likeliest hardly changes
        if self.kind == "int8" and weight.shape[1] % GROUP == 0:
            return Packed.int4_rounded(weight.cpu())
        return self.pack(weight)

    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def layers(self, config: DecoderConfig, weights: Mapping[str, Tensor], ends: Ends, pool: Pool) -> Layers:
        matrices = {weight_name(layer, name) for layer in range(config.layers) for name in config.products}
        ready = {name: self.pack(w) if name in matrices else self.vector(w) for name, w in weights.items()}
        return NativeLayers(config, ready, ends, pool)
