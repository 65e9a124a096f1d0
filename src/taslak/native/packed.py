"""A weight matrix in the layout the kernels read. native/pack.hpp describes the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from taslak.native.build import extension as _native
from taslak.native.tensors import address, allocate, check

if TYPE_CHECKING:
    from taslak._native import PackedMatrix

GROUP = 32
"""Weights along k that share a scale."""

_ROWS = 4096
"""So many are rounded at a time: each takes several times its size in between."""

_RANGES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a group's range that its 16 levels are tried on: what lies outside is cut off, the rest finer."""


@dataclass(frozen=True, slots=True)
class Packed:
    """W of y = x Wᵀ: made once, read in every pass.

    kind:    "bfloat16"; "int8" (float16 scales), "int8-float32"; "int4" (float16 scales and minima),
             "int4-float32", "int4-factors" (a K-quant's own numbers)
    shape:   (N, K): outputs, inputs
    buffer:  UInt8[nbytes], all there is to store; bytes may be a mapped file's, and stay shared
    """

    kind: str
    shape: tuple[int, int]
    buffer: Tensor
    handle: PackedMatrix = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes a pass reads, scales included."""
        return self.buffer.numel()

    @classmethod
    def bfloat16(cls, weight: Tensor) -> Packed:
        """weight: floating [N, K]; rounded to bfloat16 where it is wider."""
        weight = check("weight", weight, (None, None)).to(torch.bfloat16).contiguous()
        packed = cls._empty("bfloat16", weight)
        _native.pack_bfloat16(packed.handle, address(weight))
        return packed

    @classmethod
    def int8(cls, weight: Tensor) -> Packed:
        """weight: floating [N, K], K a multiple of 32. Rounded to 8 bits, a scale for each 32 along K."""
        wide = check("weight", weight, (None, None)).float()
        _check_granule("int8", wide)
        groups = wide.view(wide.shape[0], -1, GROUP)  # [N, K / 32, 32]
        exact = groups.abs().amax(-1) / 127.0
        scales = exact.half()
        # never below max |w| / 127, or the largest weight would not fit in its code
        up = torch.nextafter(scales, torch.tensor(torch.inf, dtype=torch.float16))
        scales = torch.where(scales.float() < exact, up, scales)
        codes = (groups / scales.float().clamp(min=2.0**-24).unsqueeze(-1)).round_().to(torch.int8)
        return cls.int8_exact(codes.flatten(1), scales)

    @classmethod
    def int8_exact(cls, codes: Tensor, scales: Tensor) -> Packed:
        """w = scale · code: Q8_0 as it is.

        codes: Int8[N, K]; scales: floating [N, K / 32], kept as float16 where that is exact.
        """
        n, k = check("codes", codes, (None, None), torch.int8).shape
        check("scales", scales, (n, k // GROUP))
        dtype, suffix = _narrowest(scales)
        codes, scales = codes.contiguous(), scales.to(dtype).contiguous()
        packed = cls._empty(f"int8{suffix}", codes)
        _native.pack_codes(packed.handle, address(codes), address(scales), 0)
        return packed

    @classmethod
    def int4_rounded(cls, weight: Tensor) -> Packed:
        """weight: floating [N, K], K a multiple of 32. Rounded to 4 bits, a scale and a minimum for each 32
        along K: of a few ranges inside theirs the one that is off least, in squares."""
        weight = check("weight", weight, (None, None))
        _check_granule("int4", weight)
        parts = [_in_16_levels(rows.float()) for rows in torch.split(weight, _ROWS)]
        return cls.int4(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    @classmethod
    def int4(cls, codes: Tensor, scales: Tensor, minima: Tensor) -> Packed:
        """w = scale · code + minimum: Q4_0 (minimum = −8 · scale) and Q4_1 as they are.

        codes: UInt8[N, K] of 0 … 15; scales, minima: floating [N, K / 32], kept as float16 where exact.
        """
        n, k = check("codes", codes, (None, None), torch.uint8).shape
        check("scales", scales, (n, k // GROUP))
        check("minima", minima, (n, k // GROUP))
        dtype, suffix = _narrowest(scales, minima)
        codes = _nibbles(codes)
        scales, minima = scales.to(dtype).contiguous(), minima.to(dtype).contiguous()
        packed = cls._empty(f"int4{suffix}", codes)
        _native.pack_codes(packed.handle, address(codes), address(scales), address(minima))
        return packed

    @classmethod
    def int4_factors(cls, codes: Tensor, d: Tensor, dmin: Tensor, scales: Tensor, minima: Tensor) -> Packed:
        """w = (d · scale) · code − (dmin · minimum): Q4_K as it is, K a multiple of 256.

        codes: UInt8[N, K] of 0 … 15; d, dmin: Float16[N, K / 256]; scales, minima: UInt8[N, K / 32].
        """
        n, k = check("codes", codes, (None, None), torch.uint8).shape
        for name, tensor in (("d", d), ("dmin", dmin)):
            check(name, tensor, (n, k // (8 * GROUP)), torch.float16)
        for name, tensor in (("scales", scales), ("minima", minima)):
            check(name, tensor, (n, k // GROUP), torch.uint8)
        codes = _nibbles(codes)
        factors = [tensor.contiguous() for tensor in (d, dmin, scales, minima)]
        packed = cls._empty("int4-factors", codes)
        _native.pack_factors(packed.handle, address(codes), *(address(factor) for factor in factors))
        return packed

    @classmethod
    def from_buffer(cls, kind: str, shape: Sequence[int], buffer: Tensor) -> Packed:
        """What `kind`, `shape` and `buffer` said before, without a copy. buffer: UInt8[nbytes]."""
        if kind not in _native.kinds():
            raise ValueError(f"kind is {kind!r}; expected one of {', '.join(_native.kinds())}")
        n, k = shape
        handle = _native.PackedMatrix(kind, n, k, address(buffer))
        check("buffer", buffer, (handle.nbytes,), torch.uint8)
        if not buffer.is_contiguous():
            raise ValueError("buffer has gaps; expected it contiguous")
        return cls(kind, (n, k), buffer, handle)

    def dequantised(self) -> Tensor:
        """Float32[N, K]; scale · code + minimum is rounded once."""
        out = torch.empty(self.shape)
        _native.unpack(self.handle, address(out))
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """The rows `ids` as `dequantised` gives them, no others touched. ids: Int64[R] -> Float32[R, K].
        Raises IndexError for an id outside 0 … N − 1."""
        ids = check("ids", ids, (None,), torch.int64).contiguous()
        out = torch.empty((ids.numel(), self.shape[1]))
        _native.unpack_rows(self.handle, address(ids), ids.numel(), address(out))
        return out

    def first(self, n: int) -> Packed:
        """The matrix of the first n rows; the bytes stay shared."""
        whole, k = self.shape
        if not 0 < n <= whole:
            raise ValueError(f"n is {n}; expected 1 … {whole}")
        nbytes = _native.PackedMatrix(self.kind, n, k, 0).nbytes
        return Packed.from_buffer(self.kind, (n, k), self.buffer[:nbytes])

    @classmethod
    def _empty(cls, kind: str, like: Tensor) -> Packed:
        """Unwritten, in the shape of `like`."""
        _check_granule(kind, like)
        n, k = like.shape
        return cls.from_buffer(kind, (n, k), allocate(_native.PackedMatrix(kind, n, k, 0).nbytes))


def _check_granule(kind: str, weight: Tensor) -> None:
    granule = _native.PackedMatrix(kind, 0, 0, 0).granule
    if weight.shape[1] % granule:
        raise ValueError(f"K is {weight.shape[1]}; {kind} weights need a multiple of {granule}")


def _narrowest(*tensors: Tensor) -> tuple[torch.dtype, str]:
    """float16 where every value survives it, else float32; and what that adds to the kind."""
    if all(torch.equal(tensor.half().float(), tensor.float()) for tensor in tensors):
        return torch.float16, ""
    return torch.float32, "-float32"


def _in_16_levels(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rows: Float32[n, K] -> UInt8[n, K] codes, Float16[n, K / 32] scales and minima."""
    groups = rows.view(rows.shape[0], -1, GROUP)  # [n, K / 32, 32]
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    middle, half = (low + high) / 2, (high - low) / 2
    best: tuple[Tensor, ...] | None = None
    for share in _RANGES:
        minima = (middle - share * half).half()
        scales = (share * half / 7.5).half()
        step = scales.float().clamp(min=2.0**-24)
        codes = ((groups - minima) / step).round_().clamp_(0, 15)
        off = (codes * step + minima - groups).square_().sum(-1, keepdim=True)
        found = off, codes, scales, minima
        if best is None:
            best = found
        else:
            best = tuple(torch.where(off < best[0], a, b) for a, b in zip(found, best, strict=True))
    assert best is not None
    _, codes, scales, minima = best
    return codes.to(torch.uint8).flatten(1), scales.squeeze(-1), minima.squeeze(-1)


def _nibbles(codes: Tensor) -> Tensor:
    if codes.numel() and int(codes.max()) > 15:
        raise ValueError(f"codes go up to {int(codes.max())}; expected 0 … 15")
    return codes.contiguous()
