"""The differentiable transformer layer that heads and draft models are made of.

Plain PyTorch, whole texts at a time; what it computes is what the drafters' inference computes row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taslak.drafters.formats import LayerConfig
from taslak.models.rope import rotate

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one round, Float[T, kv heads, d] each, keys rotated."""


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

    def __init__(
        self,
        config: LayerConfig,
        hidden: int,
        *,
        width: int | None = None,
        input_norm: bool = False,
        out_bias: bool = False,
        mlp_bias: bool = False,
    ) -> None:
        """hidden: of the rows; width: of what attention reads, None = hidden."""
        super().__init__()
        c, width = config, width or hidden
        self.config = config
        self.input_norm = Norm(hidden, c.norm_eps) if input_norm else None
        self.q = nn.Linear(width, c.heads * c.head_size, c.qkv_bias)
        self.k = nn.Linear(width, c.kv_heads * c.head_size, c.qkv_bias)
        self.v = nn.Linear(width, c.kv_heads * c.head_size, c.qkv_bias)
        self.o = nn.Linear(c.heads * c.head_size, hidden, out_bias)
        self.post_norm = Norm(hidden, c.norm_eps)
        self.gate = nn.Linear(hidden, c.inner_size, mlp_bias)
        self.up = nn.Linear(hidden, c.inner_size, mlp_bias)
        self.down = nn.Linear(c.inner_size, hidden, mlp_bias)

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
        c = self.config
        rows = x.shape[0]
        q = rotate(self.q(x).view(rows, c.heads, c.head_size), *turn)
        k = rotate(self.k(x).view(rows, c.kv_heads, c.head_size), *turn)
        v = self.v(x).view(rows, c.kv_heads, c.head_size)
        k = k.to(v.dtype)
        keys = torch.cat([*(old for old, _ in past), k])  # [T · rounds, kv heads, d]
        values = torch.cat([*(old for _, old in past), v])
        group = c.heads // c.kv_heads
        mixed = F.scaled_dot_product_attention(
            q.to(v.dtype).transpose(0, 1)[None],
            keys.repeat_interleave(group, dim=1).transpose(0, 1)[None],
            values.repeat_interleave(group, dim=1).transpose(0, 1)[None],
            attn_mask=mask,
        )  # [1, heads, T, d]
        h = residual + self.o(mixed[0].transpose(0, 1).reshape(rows, -1)).float()
        y = self.post_norm(h)
        return h + self.down(F.silu(self.gate(y)) * self.up(y)).float(), (k, v)


def set_weight(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    """Start a linear layer or a norm from given numbers."""
    with torch.no_grad():
        module.weight.copy_(weight)  # type: ignore[operator, union-attr]
        if bias is not None:
            module.bias.copy_(bias)  # type: ignore[operator, union-attr]
