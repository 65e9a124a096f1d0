"""The differentiable transformer layer that heads and draft models are made of.

Plain PyTorch, whole texts at a time; what it computes is what the drafters' inference computes row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taslak.models.rope import rotate

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one round, Float[T, kv heads, d] each, keys rotated."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer. `width`: of what its attention reads, None = hidden_size."""

    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    head_size: int
    norm_eps: float
    width: int | None = None
    input_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), in float32. [T, H] -> [T, H]."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Layer(nn.Module):
    """Attention and a gated MLP, each added to what came in. Parameters are named as in a head's file."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width or shape.hidden_size
        q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.input_norm = Norm(shape.hidden_size, shape.norm_eps) if shape.input_norm else None
        self.q = nn.Linear(width, q, shape.qkv_bias)
        self.k = nn.Linear(width, kv, shape.qkv_bias)
        self.v = nn.Linear(width, kv, shape.qkv_bias)
        self.o = nn.Linear(q, shape.hidden_size, shape.out_bias)
        self.post_norm = Norm(shape.hidden_size, shape.norm_eps)
        self.gate = nn.Linear(shape.hidden_size, shape.inner_size, shape.mlp_bias)
        self.up = nn.Linear(shape.hidden_size, shape.inner_size, shape.mlp_bias)
        self.down = nn.Linear(shape.inner_size, shape.hidden_size, shape.mlp_bias)

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Tensor,
        past: Sequence[KeyValue] = (),
    ) -> tuple[Tensor, KeyValue]:
        """x: what attention reads, [T, width]; residual: [T, H]; turn: cos and sin of the rows' positions;
        past: K/V of earlier rounds, whose keys stand before this round's; mask: Bool[T, T · rounds].

        -> Float32[T, H], and this round's K/V.
        """
        s = self.shape
        rows = x.shape[0]
        q = rotate(self.q(x).view(rows, s.heads, s.head_size), *turn)
        k = rotate(self.k(x).view(rows, s.kv_heads, s.head_size), *turn)
        v = self.v(x).view(rows, s.kv_heads, s.head_size)
        k = k.to(v.dtype)
        keys = torch.cat([*(old for old, _ in past), k])  # [T · rounds, kv heads, d]
        values = torch.cat([*(old for _, old in past), v])
        group = s.heads // s.kv_heads
        mixed = F.scaled_dot_product_attention(
            q.to(v.dtype).transpose(0, 1)[None],
            keys.repeat_interleave(group, dim=1).transpose(0, 1)[None],
            values.repeat_interleave(group, dim=1).transpose(0, 1)[None],
            attn_mask=mask,
        )  # [1, heads, T, d]
        h = residual + self.o(mixed[0].transpose(0, 1).reshape(rows, -1)).float()
        y = self.post_norm(h)
        return h + self.down(F.silu(self.gate(y)) * self.up(y)).float(), (k, v)


def set_weight(linear: nn.Linear | Norm | nn.Embedding, weight: Tensor, bias: Tensor | None = None) -> None:
    """Start from given numbers."""
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            assert isinstance(linear, nn.Linear)
            linear.bias.copy_(bias)
