"""The arithmetic of a decoder behind one small protocol, and its quick PyTorch form.

`Quick` here, `taslak.models.reference.Reference` beside it. Both know tensors and slots, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from taslak.models.cache import Block


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of one sequence in a pass.

    block:  its block table, the rows' nodes in it already
    nodes:  their node numbers, ascending
    base:   the text's position that the block's first slot holds
    """

    block: Block
    nodes: Sequence[int]
    base: int = 0

    def positions(self) -> list[int]:
        """[R] of the rows, in the text."""
        first = self.base + self.block.length
        return [first + self.block.depths[node] for node in self.nodes]

    def slots(self) -> list[int]:
        """[R] where the rows' own K/V goes."""
        return [self.block.slot(self.block.length + node) for node in self.nodes]


class Ops(Protocol):
    """How rows are computed. All tensors of one call have one floating dtype."""

    width_invariant: bool

    def prepare(self, weights: Sequence[Tensor]) -> None:
        """Called once at load with every matrix `linear` will see."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x: [R, K], weight: [N, K], bias: [N] -> [R, N]."""
        ...

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019) in float32; a float32 weight is multiplied with before the result
        is rounded to x's dtype. x: [..., H] -> [..., H]."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """LayerNorm (Ba et al. 2016). x: [R, H] -> [R, H]."""
        ...

    def activate(self, kind: str, x: Tensor) -> Tensor:
        """An activation of DecoderConfig: SiLU, GELU (Hendrycks and Gimpel 2016) or its form with tanh."""
        ...

    def cap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap), the soft cap of Gemma 2. x: Float32."""
        ...

    def plan(self, shares: Sequence[Share], windows: Sequence[int] = (0,)) -> Any:
        """What `attend` needs to know of a pass; made once, used in every layer. windows: those it will be
        called with."""
        ...

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: Any,
        scale: float,
        *,
        window: int = 0,
        cap: float = 0.0,
    ) -> Tensor:
        """Dot-product attention of each row over its sequence's committed positions and its own ancestors,
        itself included. q: [R, heads, d]; keys, values: [slots, kv heads, d] -> [R, heads · d].

        scale:   of the scores
        window:  how many positions a row sees, itself included, 0 = all
        cap:     soft cap of the scores, 0 = none
        """
        ...


@dataclass(frozen=True, slots=True)
class QuickShare:
    """rows: how many; slots: where their keys lie; mask: Float[rows, keys] added to the scores, or None."""

    rows: int
    slots: slice | Tensor
    mask: Tensor | None


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): what Gemma 2 does to scores and logits."""
    return torch.tanh(x / cap) * cap


class Quick:
    """PyTorch's own kernels. The last bits of a row may depend on how many rows stand beside it."""

    width_invariant = False

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        cpu = device.type == "cpu"
        features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        self._mkl = cpu and dtype == torch.float32
        self._tiles = cpu and dtype == torch.bfloat16 and bool(features.get("amx_bf16"))

    def prepare(self, weights: Sequence[Tensor]) -> None:
        del weights

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._turned(x.shape[0], weight.numel()):
            y = (weight @ x.t()).t() if x.shape[0] > 1 else torch.mv(weight, x[0])[None]  # [R, N]
            return y if bias is None else y + bias
        return F.linear(x, weight, bias)

    def _turned(self, rows: int, elements: int) -> bool:
        """Whether W xᵀ is quicker than x Wᵀ. Fixed for a machine, never measured at run time: the choice
        decides the last bits of a row.

        float32: MKL takes x Wᵀ three rows at a time, each three for one reading of W; W xᵀ costs two
        readings whatever the rows. 8960 x 1536 on two cores, ms for 1 / 3 / 5 / 9 rows: 2.2 / 2.3 / 4.6 /
        6.4 against 2.4 / 3.9 / 4.0 / 4.0; small matrices gain from seven rows on only. bfloat16: with matrix
        tiles (AMX) W is the better left operand, 1.2 ms against 1.6; without them it takes two to four times
        as long.
        """
        if self._tiles:
            return rows <= 16
        return self._mkl and (7 <= rows <= 16 or (4 <= rows <= 6 and elements > 8_000_000))

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()  # written out: F.rms_norm takes three times as long on the CPU
        scale = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()  # [..., 1]
        if weight.dtype != x.dtype:
            return (wide * scale * weight).to(x.dtype)
        return (wide * scale).to(x.dtype) * weight

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def activate(self, kind: str, x: Tensor) -> Tensor:
        if kind == "silu":
            return F.silu(x)
        return F.gelu(x, approximate="tanh" if kind == "gelu-tanh" else "none")

    def cap(self, x: Tensor, cap: float) -> Tensor:
        return soft_cap(x, cap)

    def plan(self, shares: Sequence[Share], windows: Sequence[int] = (0,)) -> dict[int, list[QuickShare]]:
        return {window: [self._share(share, window) for share in shares] for window in windows}

    def _share(self, share: Share, window: int) -> QuickShare:
        block, nodes = share.block, share.nodes
        stop = block.length + block.nodes
        ends = [block.length + block.depths[node] for node in nodes] if window else []  # the rows' positions
        first = max(min(ends) - window + 1, 0) if window else 0
        slots = block.slots(first, stop)
        if len(nodes) == 1 and len(block.ancestors(nodes[0])) == block.nodes:
            return QuickShare(1, slots, None)
        mask = torch.full((len(nodes), stop), -torch.inf, dtype=self._dtype)
        mask[:, : block.length] = 0.0
        if block.is_line:  # node i sees nodes 0 … i
            own = torch.arange(block.nodes) <= torch.tensor(nodes)[:, None]
            mask[:, block.length :].masked_fill_(own, 0.0)
        else:
            for row, node in enumerate(nodes):
                mask[row, [block.length + ancestor for ancestor in block.ancestors(node)]] = 0.0
        if window:
            positions = torch.tensor(
                [*range(block.length), *(block.length + depth for depth in block.depths)]
            )
            mask.masked_fill_(positions <= torch.tensor(ends)[:, None] - window, -torch.inf)
        return QuickShare(len(nodes), slots, mask[:, first:].to(self._device))

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: dict[int, list[QuickShare]],
        scale: float,
        *,
        window: int = 0,
        cap: float = 0.0,
    ) -> Tensor:
        outputs = []
        start = 0
        for share in plan[window]:
            rows = q[start : start + share.rows]
            outputs.append(self._attend_one(rows, keys, values, share, scale, cap))
            start += share.rows
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_one(
        self, q: Tensor, keys: Tensor, values: Tensor, share: QuickShare, scale: float, cap: float
    ) -> Tensor:
        rows, heads, d = q.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        k = keys[share.slots].transpose(0, 1)[None]  # [1, kv heads, keys, d]
        v = values[share.slots].transpose(0, 1)[None]
        # the heads that share a K/V head are stacked as more rows: no copy of K/V for grouped queries
        q = q.view(rows, kv_heads, group, d).permute(1, 2, 0, 3).reshape(1, kv_heads, group * rows, d)
        mask = None if share.mask is None else share.mask.repeat(group, 1)
        if cap:
            scores = self.cap((q @ k.transpose(-1, -2)).float() * scale, cap)
            scores = scores if mask is None else scores + mask
            out = torch.softmax(scores, dim=-1).to(v.dtype) @ v
        else:  # [1, kv heads, group · rows, d]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.view(kv_heads, group, rows, d).permute(2, 0, 1, 3).reshape(rows, heads * d)
