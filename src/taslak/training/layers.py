"""The differentiable transformer layer that heads and draft models are made of.

Plain PyTorch, whole texts at a time; what it computes is what the drafters' inference computes row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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
        spans: Sequence[slice],
        past: Sequence[KeyValue] = (),
    ) -> tuple[Tensor, KeyValue]:
        """x: what attention reads, [T, width]; residual: [T, H]; turn: cos and sin of the rows' positions;
        spans: the rows of each text; past: K/V of earlier rounds.

        -> Float32[T, H], and this round's K/V.
        """
        c = self.config
        rows = x.shape[0]
        q = rotate(self.q(x).view(rows, c.heads, c.head_size), *turn)
        k = rotate(self.k(x).view(rows, c.kv_heads, c.head_size), *turn)
        v = self.v(x).view(rows, c.kv_heads, c.head_size)
        q, k = q.to(v.dtype), k.to(v.dtype)
        rounds = [*past, (k, v)]
        mixed = torch.cat([_attend(q[span], [(a[span], b[span]) for a, b in rounds]) for span in spans])
        h = residual + self.o(mixed).float()
        y = self.post_norm(h)
        return h + self.down(F.silu(self.gate(y)) * self.up(y)).float(), (k, v)


def _attend(q: Tensor, rounds: Sequence[KeyValue]) -> Tensor:
    """One text: each row over what it sees. q: [L, heads, d] -> [L, heads · d]."""
    length, heads, _ = q.shape
    group = heads // rounds[0][0].shape[1]
    keys = torch.cat([k for k, _ in rounds]).repeat_interleave(group, dim=1)  # [L · rounds, heads, d]
    values = torch.cat([v for _, v in rounds]).repeat_interleave(group, dim=1)
    mask = None if len(rounds) == 1 else sees(length, len(rounds) - 1).to(q.device)
    q, keys, values = (t.transpose(0, 1)[None] for t in (q, keys, values))
    mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
    return mixed[0].transpose(0, 1).reshape(length, -1)


@lru_cache(maxsize=256)
def sees(length: int, earlier: int) -> Tensor:
    """Which keys a row of round `earlier` attends to. -> Bool[L, L · (1 + earlier)].

    The first L keys were made from the target's own features: a row sees those at least `earlier` rows back.
    Each further L keys were made in a later round from the head's own output: of round j a row sees the one
    `earlier` − j rows back, of this round itself. That is what a chain of drafted tokens sees (training-time
    test, Li et al. 2025, EAGLE-3).
    """
    row = torch.arange(length)
    back = row[:, None] - row[None]
    return torch.cat([back >= earlier, *(back == earlier - j for j in range(1, earlier + 1))], dim=1)


def set_weight(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    """Start a linear layer or a norm from given numbers."""
    with torch.no_grad():
        module.weight.copy_(weight)  # type: ignore[operator]
        if bias is not None:
            module.bias.copy_(bias)  # type: ignore[operator]
