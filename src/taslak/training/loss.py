"""The loss every head shares: cross-entropy against the target's own distribution (Hinton et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
"""Rows whose logits exist at once."""


def compute_dtype(device: torch.device) -> torch.dtype:
    """What products run in: autocast's dtype where it is on, else float32."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else torch.float32


class _Distilled(torch.autograd.Function):
    """Logits and their gradient chunk by chunk: at a vocabulary's width, keeping them for the way back costs
    more memory than everything else of a step, and computing them again costs more time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, p: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        dtype = compute_dtype(x.device)
        w = weight.to(dtype)
        loss = torch.zeros((), device=x.device)
        best = torch.empty(x.shape[0], dtype=torch.long, device=x.device)
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, x.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            own, teacher, of = x[rows].to(dtype), p[rows].float(), share[rows, None]
            z = (own @ w.t()).float()  # [CHUNK, Vd]
            top, best[rows] = z.max(-1)
            q = torch.softmax(z, dim=-1)
            # −Σ p log q = log Σ exp z − Σ p z; the likeliest one's z and q say what the first of these is
            normaliser = top - q.gather(1, best[rows, None])[:, 0].log()
            loss += ((normaliser - torch.linalg.vecdot(teacher, z)) * of[:, 0]).sum()
            grad = q.sub_(teacher).mul_(of).to(dtype)
            grad_x[rows] = (grad @ w).to(x.dtype)
            if grad_weight is not None:
                grad_weight += (grad.t() @ own).to(weight.dtype)
        ctx.save_for_backward(grad_x, grad_weight)
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_x, grad_weight = ctx.saved_tensors
        scale = grads[0]
        return grad_x * scale, None if grad_weight is None else grad_weight * scale, None, None


def distilled(x: Tensor, weight: Tensor, p: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """-Σ share · Σ_v p(v) log q(v) with q = softmax(x weightᵀ), and each row's likeliest v.

    x: Float32[n, H]; weight: Float32[Vd, H]; p: Float[n, Vd], rows that sum to one; share: Float32[n], what a
    row counts, summing to one for a mean. -> Float32[], Int64[n]. Gradients to x and weight. Products run in
    the autocast dtype, softmax and sums in float32.
    """
    result: tuple[Tensor, Tensor] = _Distilled.apply(x, weight, p, share)  # type: ignore[no-untyped-call]
    return result
