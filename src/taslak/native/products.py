"""Products with packed weights.

A row's bits depend on the row and the weights alone: not on how many rows there are, where it stands among
them, or how many threads work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taslak.native.build import extension as _native
from taslak.native.packed import Packed
from taslak.native.tensors import address, rows, vector


def linear(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """x Wᵀ + bias + residual -> [R, N].

    x: Float32[R, K]; bias: Float32[N]; out, residual: Float32[R, N], may be the same tensor.
    """
    n, k = weight.shape
    count = rows("x", x, k).shape[0]
    if out is None:
        out = torch.empty((count, n)) if residual is None else torch.empty_like(residual)
    rows("out", out, n, count)
    bias = vector("bias", bias, n)
    if residual is not None and rows("residual", residual, n, count).stride(0) != out.stride(0):
        raise ValueError(f"residual's rows are {residual.stride(0)} apart; expected out's {out.stride(0)}")
    _native.linear(
        address(x),
        count,
        x.stride(0),
        weight.handle,
        address(bias),
        address(residual),
        address(out),
        out.stride(0),
    )
    return out


def linear_many(
    x: Tensor, weights: Sequence[Packed], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """[linear(x, w, b) for w, b in …] in one go of the threads, x quantised once."""
    biases = biases or [None] * len(weights)
    count = rows("x", x, weights[0].shape[1]).shape[0]
    outs = []
    for weight, bias in zip(weights, biases, strict=True):
        rows("x", x, weight.shape[1])
        vector("bias", bias, weight.shape[0])
        outs.append(torch.empty((count, weight.shape[0])))
    _native.linear_many(
        address(x),
        count,
        x.stride(0),
        [weight.handle for weight in weights],
        [address(bias) for bias in biases],
        [address(out) for out in outs],
    )
    return outs


def gated(
    x: Tensor, gate: Packed, up: Packed, gate_bias: Tensor | None = None, up_bias: Tensor | None = None
) -> Tensor:
    """SiLU(linear(x, gate, gate_bias)) · linear(x, up, up_bias); neither product reaches memory."""
    if gate.shape != up.shape:
        raise ValueError(f"gate is {gate.shape} and up {up.shape}; expected one shape")
    n, k = gate.shape
    out = torch.empty((rows("x", x, k).shape[0], n))
    gate_bias, up_bias = vector("gate_bias", gate_bias, n), vector("up_bias", up_bias, n)
    _native.gated(
        address(x),
        x.shape[0],
        x.stride(0),
        gate.handle,
        address(gate_bias),
        up.handle,
        address(up_bias),
        address(out),
    )
    return out
