"""Memory for weights, and what the kernels take for granted of a tensor, checked before they see it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

LARGE_PAGE = 2 << 20


def allocate(nbytes: int) -> Tensor:
    """UInt8[nbytes], unwritten, in large pages where the system has them.

    A pass reads all weights end to end; in pages of 4 KB that takes 1.2 to 1.6 times as long (address
    translation, and prefetching that stops at page ends).
    """
    # what is left over stays in small pages, so that small matrices don't waste memory
    large = nbytes // LARGE_PAGE * LARGE_PAGE
    if not large or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(nbytes, dtype=torch.uint8)
    block = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(block, dtype=torch.uint8)  # keeps the block alive
    start = -whole.data_ptr() % LARGE_PAGE
    block.madvise(mmap.MADV_HUGEPAGE, start, large)
    return whole[start : start + nbytes]


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def check(name: str, tensor: Tensor, shape: Sequence[int | None], dtype: torch.dtype | None = None) -> Tensor:
    """`tensor` itself. `shape`: None = any size; `dtype`: None = any floating one. Raises ValueError."""
    kind = tensor.dtype == dtype if dtype is not None else tensor.is_floating_point()
    sizes = len(shape) == tensor.dim() and all(map(_fits, shape, tensor.shape))
    if not (kind and sizes and tensor.is_cpu):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
            f"expected {dtype or 'floating'} [{wanted}] on cpu"
        )
    return tensor


def _fits(want: int | None, have: int) -> bool:
    return want is None or want == have


def rows(name: str, tensor: Tensor, width: int, count: int | None = None) -> Tensor:
    """Float32[count, width] whose rows are without gaps inside."""
    check(name, tensor, (count, width), torch.float32)
    if width > 1 and tensor.stride(1) != 1:
        raise ValueError(f"{name} has gaps between its columns; expected none")
    return tensor


def vector(name: str, tensor: Tensor | None, width: int) -> Tensor | None:
    """Float32[width] or None."""
    if tensor is None:
        return None
    check(name, tensor, (width,), torch.float32)
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has gaps; expected it contiguous")
    return tensor
