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

Turn = tuple[Tensor, Tensor]
"""Cosines and sines of the rows' positions."""

Span = tuple[slice, slice]
"""Of one text: its rows in the first round, and its last ones among those that all rounds run."""


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

    def key_value(self, x: Tensor, turn: Turn) -> KeyValue:
        """What others read of rows. x: what attention reads, [T, width]."""
        c = self.config
        k = rotate(self.k(x).view(-1, c.kv_heads, c.head_size), *turn)
        v = self.v(x).view(-1, c.kv_heads, c.head_size)
        return k.to(v.dtype), v

    def forward(
        self, x: Tensor, residual: Tensor, turn: Turn, spans: Sequence[Span], rounds: Sequence[KeyValue]
    ) -> Tensor:
        """x: what attention reads, [n, width]; residual: [n, H]; turn: of these rows; spans: of each text;
        rounds: K/V of the rounds, the rows' own last. -> Float32[n, H]."""
        c = self.config
        (keys, values), *later = rounds
        q = rotate(self.q(x).view(-1, c.heads, c.head_size), *turn).to(values.dtype)
        mixed = torch.cat(
            [
                _attend(q[own], [(keys[whole], values[whole]), *((a[own], b[own]) for a, b in later)])
                for whole, own in spans
            ]
        )
        h = residual + self.o(mixed).float()
        y = self.post_norm(h)
        inner: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        out: Tensor = h + inner.float()
        return out


def _attend(q: Tensor, rounds: Sequence[KeyValue]) -> Tensor:
    """One text's last n rows over what each sees. q: [n, heads, d] -> [n, heads · d].

    The first round's K/V is of the whole text, made from the target's own features: a row of round `earlier`
    sees those at least `earlier` rows back. The others' are of these rows, made from the head's own output:
    of round j it sees the one `earlier` − j rows back, of its own round itself. That is what a chain of
    drafted tokens sees (training-time test, Li et al. 2025, EAGLE-3).
    """
    rows, heads, size = q.shape
    (keys, values), *later = rounds
    length = keys.shape[0]
    q = q.view(rows, keys.shape[1], -1, size).permute(1, 2, 0, 3)  # [kv heads, group, n, d]
    keys, values = (t.transpose(0, 1)[:, None] for t in (keys, values))  # [kv heads, 1, L, d]
    if not later:
        keys, values = (t.expand(-1, q.shape[1], -1, -1) for t in (keys, values))
        whole = rows == length
        mask = None if whole else _first_keys(rows, length, 0, q.device)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=whole)
    else:
        # a row sees one key of each later round; a mask over all of them would compute `length` times that
        seen, backs = _first_keys(rows, length, len(later), q.device), range(len(later) - 1, -1, -1)
        alone = [tuple(_earlier(t, back) for t in both) for both, back in zip(later, backs, strict=True)]
        scores = [(q @ keys.transpose(-1, -2)).masked_fill(~seen, -torch.inf)]
        for (key, _), back in zip(alone, backs, strict=True):
            scores.append((q * key).sum(-1, keepdim=True))
            scores[-1][..., :back, :] = -torch.inf
        weights = torch.softmax(torch.cat(scores, dim=-1).float() * size**-0.5, dim=-1)
        mixed = (weights[..., :length].to(values.dtype) @ values).float()
        for at, (_, value) in enumerate(alone):
            mixed = mixed + weights[..., length + at, None] * value
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads * size)


def _earlier(t: Tensor, back: int) -> Tensor:
    """At each row what is `back` rows before it; zeros where there is none. [n, kv heads, d] ->
    [kv heads, 1, n, d]."""
    return F.pad(t, (0, 0, 0, 0, back, 0))[: t.shape[0]].transpose(0, 1)[:, None]


def _first_keys(rows: int, length: int, earlier: int, device: torch.device) -> Tensor:
    """Of the last rows of a text, which of the first round's keys each sees. -> Bool[rows, length]."""
    at = torch.arange(length, device=device)
    return at[length - rows :, None] - at >= earlier


def set_weight(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> None:
    """Start a linear layer or a norm from given numbers."""
    with torch.no_grad():
        module.weight.copy_(weight)  # type: ignore[operator]
        if bias is not None:
            module.bias.copy_(bias)  # type: ignore[operator]
