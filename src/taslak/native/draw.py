"""The draw: argmax of score + Gumbel noise, token for token the one of `core.sampling.Distribution`; and rows
ranked without noise.

`state` is what `core.noise.address` derives from (key, stream, position).
"""

from __future__ import annotations

import torch
from torch import Tensor

from taslak.core.sampling import RowDraw
from taslak.native.build import available
from taslak.native.build import extension as _native
from taslak.native.tensors import address, check


def draw_row(
    logits: Tensor, temperature: float, state: int, k: int = 1, ids: Tensor | None = None
) -> tuple[list[int], list[float]]:
    """The k largest of (logits − max) / temperature + noise over a whole row and these sums, largest first;
    at temperature 0 of the logits alone. −inf is never chosen, so there may be fewer.

    logits: Float32[V]; ids: Int64[V], the token of each, ascending, None = logit i is token i's. Raises
    ValueError where the logits hold a NaN or +inf, or nothing above −inf.
    """
    check("logits", logits, (None,), torch.float32)
    logits = logits.contiguous()
    if ids is not None:
        ids = check("ids", ids, logits.shape, torch.int64).contiguous()
    return _native.draw_row(address(logits), address(ids), logits.numel(), temperature, state, k)


def draw_support(ids: Tensor, z: Tensor, state: int, k: int = 1) -> list[int]:
    """The k largest of z + noise, largest first. ids: Int64[S]; z: Float64[S]."""
    check("z", z, (None,), torch.float64)
    check("ids", ids, z.shape, torch.int64)
    ids, z = ids.contiguous(), z.contiguous()
    return _native.draw_support(address(ids), address(z), ids.numel(), state, k)[0]


def rank_rows(logits: Tensor, k: int) -> list[tuple[list[int], list[float]]]:
    """Of each row the indices of the k largest logits, largest first, the lower one on ties, and their
    softmax over the row. None for a row with a NaN or +inf, or nothing above −inf. logits: Float32[R, V]."""
    check("logits", logits, (None, None), torch.float32)
    logits = logits.contiguous()
    rows, count = logits.shape
    return _native.rank(address(logits), rows, count, k)


def row_draw(logits: Tensor) -> RowDraw | None:
    """`draw_row` where it can serve such a row: the kernels are there and the row is on the CPU."""
    return draw_row if logits.is_cpu and available() else None
