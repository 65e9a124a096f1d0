"""The reference mode: a row's bits depend on the row and its past alone, by construction.

PyTorch's kernels round differently for different row counts, thread counts and places in a vector. Here
every reduction has one fixed shape and order, and everything else is IEEE additions and multiplications:
  linear      blocks of exactly 8 rows, on as many threads as give the same bits as one thread
  attention   keys by absolute position, in blocks of 64, block sums added in order; tail blocks add zero
  exp         additions, multiplications and a power of two (vectorised and scalar `exp` differ)
Slower than `Quick`; it is the yardstick the fast paths are measured against, and what `--exact` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.errors import TaslakError
from taslak.models.cache import PAGE
from taslak.models.ops import Share

_ROWS = 8
"""Rows in a block; shorter blocks are padded with zeros."""


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """slots: Int64[R, B · 64] of each row's keys by absolute position, padded at the end;
    lengths: Int64[R] how many of them are real."""

    slots: Tensor
    lengths: Tensor


class Reference:
    """Width-invariant arithmetic in plain PyTorch, float32 inside."""

    width_invariant = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads: dict[tuple[tuple[int, ...], torch.dtype], int] = {}

    def prepare(self, weights: Sequence[Tensor]) -> None:
        """Test each shape on this machine. Raises TaslakError where its library can't keep the promise."""
        for weight in weights:
            if (tuple(weight.shape), weight.dtype) not in self._threads:
                self._threads[tuple(weight.shape), weight.dtype] = _steady_threads(weight)
        if not _attention_is_steady(self._device):
            raise TaslakError("batched matrix products depend on the batch here: --exact is not available")

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.shape[0]
        x = F.pad(x, (0, 0, 0, -rows % _ROWS))
        with _threads(self._threads.get((tuple(weight.shape), weight.dtype), 1)):
            blocks = [F.linear(block, weight) for block in torch.split(x, _ROWS)]  # [8, N] each
        y = torch.cat(blocks)[:rows]
        return y if bias is None else y + bias

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        mean = (wide * wide).sum(-1, keepdim=True) / x.shape[-1]  # [R, 1]
        normed = wide / (mean + eps).sqrt()
        return weight * normed.to(x.dtype) if weight.dtype == x.dtype else (weight * normed).to(x.dtype)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        wide = x.float()
        wide = wide - wide.sum(-1, keepdim=True) / x.shape[-1]
        variance = (wide * wide).sum(-1, keepdim=True) / x.shape[-1]  # [R, 1]
        return (wide / (variance + eps).sqrt() * weight + bias).to(x.dtype)

    def activate(self, kind: str, x: Tensor) -> Tensor:
        wide = x.float()
        if kind == "gelu":
            return (0.5 * wide * (1.0 + steady_erf(wide * 0.5**0.5))).to(x.dtype)
        # tanh-GELU is x · sigmoid(2 √(2/π) (x + 0.044715 x³))
        slope = wide if kind == "silu" else 1.5957691216057308 * (wide + 0.044715 * (wide * wide * wide))
        return (wide / (1.0 + steady_exp(-slope))).to(x.dtype)

    def cap(self, x: Tensor, cap: float) -> Tensor:
        e = steady_exp(x / cap * 2.0)
        return (e - 1.0) / (e + 1.0) * cap

    def plan(self, shares: Sequence[Share], windows: Sequence[int] = (0,)) -> ReferencePlan:
        del windows
        rows: list[Tensor] = []
        for share in shares:
            block = share.block
            committed = torch.tensor(
                [block.slot(position) for position in range(block.length)], dtype=torch.int64
            )
            for node in share.nodes:
                own = [block.slot(block.length + ancestor) for ancestor in block.ancestors(node)]
                rows.append(torch.cat((committed, torch.tensor(own, dtype=torch.int64))))
        lengths = torch.tensor([row.numel() for row in rows])
        width = -(-int(lengths.max()) // PAGE) * PAGE
        # padded with the row's own slot: weighted with zero, but an unwritten slot could hold a NaN
        slots = torch.stack([F.pad(row, (0, width - row.numel()), value=int(row[-1])) for row in rows])
        return ReferencePlan(slots.to(self._device), lengths.to(self._device))

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: ReferencePlan,
        scale: float,
        *,
        window: int = 0,
        cap: float = 0.0,
    ) -> Tensor:
        # a few rows at a time: each row gathers its own copy of its keys
        parts = []
        for i in range(0, q.shape[0], _ROWS):
            few = ReferencePlan(plan.slots[i : i + _ROWS], plan.lengths[i : i + _ROWS])
            parts.append(self._attend(q[i : i + _ROWS], keys, values, few, scale, window, cap))
        return torch.cat(parts)

    def _attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: ReferencePlan,
        scale: float,
        window: int,
        cap: float,
    ) -> Tensor:
        """q: [R, heads, d] -> [R, heads · d]."""
        rows, heads, d = q.shape
        kv_heads = keys.shape[1]
        group, blocks = heads // kv_heads, plan.slots.shape[1] // PAGE
        shape = (rows, blocks, PAGE, kv_heads, d)
        k = keys[plan.slots].float().view(shape).permute(0, 3, 1, 2, 4)  # [R, kv, B, 64, d]
        v = values[plan.slots].float().view(shape).permute(0, 3, 1, 2, 4)
        wide = (
            q.float().view(rows, kv_heads, 1, group, d).expand(-1, -1, blocks, -1, -1)
        )  # [R, kv, B, group, d]
        scores = _bmm(wide, k.transpose(-1, -2)) * scale  # [R, kv, B, group, 64]
        if cap:
            scores = self.cap(scores, cap)
        position = torch.arange(blocks * PAGE, device=q.device).view(1, 1, blocks, 1, PAGE)
        lengths = plan.lengths.view(rows, 1, 1, 1, 1)
        seen = position < lengths
        if window:
            seen &= position >= lengths - window
        # the largest score is the same in any order, so only the sums need one
        largest = scores.masked_fill(~seen, -torch.inf).amax(dim=(2, 4), keepdim=True)
        weights = steady_exp(scores - largest) * seen  # [R, kv, B, group, 64]
        sums = weights.sum(-1, keepdim=True)  # [R, kv, B, group, 1]
        mixed = _bmm(weights, v)  # [R, kv, B, group, d]
        total, out = sums[:, :, 0], mixed[:, :, 0]
        for block in range(1, blocks):
            total = total + sums[:, :, block]
            out = out + mixed[:, :, block]
        return (out / total).view(rows, heads * d).to(q.dtype)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Batched product over the leading three dimensions; each product has one fixed shape."""
    lead = a.shape[:3]
    a, b = (t.reshape(-1, *t.shape[3:]).contiguous() for t in (a, b))
    return torch.bmm(a, b).view(*lead, a.shape[1], b.shape[2])


def steady_exp(x: Tensor) -> Tensor:
    """exp in float32 to about 1 ulp, of IEEE operations alone. x: Float32, any shape.

    exp(x) = 2ⁿ · exp(r), |r| ≤ ln 2 / 2, with Cody and Waite's two-part ln 2 and a Taylor polynomial. Results
    under 2⁻¹²⁶ become zero; exp(0) is exactly 1.
    """
    x = x.clamp(-88.0, 88.0)
    n = (x * 1.4426950408889634 + 0.5).floor()
    r = x - n * 0.693359375
    r = r + n * 2.12194440e-4
    p = torch.full_like(r, 1.0 / 5040.0)
    for denominator in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        p = p * r + 1.0 / denominator
    scale = ((n.to(torch.int32) + 127).clamp(min=0) << 23).view(torch.float32)
    return p * scale


def steady_erf(x: Tensor) -> Tensor:
    """The error function, of IEEE operations alone, to 4e-7 (Abramowitz and Stegun 1964, 7.1.26).
    x: Float32, any shape."""
    size = x.abs()
    t = 1.0 / (1.0 + 0.3275911 * size)
    p = torch.full_like(t, 1.061405429)
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p = p * t + term
    return torch.copysign(1.0 - p * t * steady_exp(-(size * size)), x)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steady_threads(weight: Tensor) -> int:
    """How many threads `linear` may use for this weight: all, if they split outputs only, else one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((_ROWS, weight.shape[1]), generator=generator).to(weight.dtype).to(weight.device)
    many = F.linear(x, weight)
    with _threads(1):
        one = F.linear(x, weight)
        turned = F.linear(x.flip(0).contiguous(), weight).flip(0)
    if not torch.equal(one, turned):
        raise TaslakError(
            f"a {weight.dtype} product with a {tuple(weight.shape)} matrix depends on the row's place here: "
            "--exact is not available"
        )
    return torch.get_num_threads() if torch.equal(many, one) else 1


def _attention_is_steady(device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn((48, 3, 64), generator=generator).to(device)
    b = torch.randn((48, 64, 64), generator=generator).to(device)
    whole = torch.bmm(a, b)
    with _threads(1):
        return all(torch.equal(torch.bmm(a[:n], b[:n]), whole[:n]) for n in (1, 2, 7, 48))
