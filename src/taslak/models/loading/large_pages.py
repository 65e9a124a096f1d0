"""Bytes of a file in large pages: mapped where the file system keeps them so, else read into memory of them.

A pass reads all weights end to end; in a mapped file's small pages that takes 1.2 to 1.6 times as long.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from taslak.native import allocate
from taslak.native.tensors import LARGE_PAGE

if TYPE_CHECKING:
    from torch import Tensor

READ_BYTES = 32 << 20
ENOUGH = 0.75
"""The share of a mapped file in large pages with which it is used as it lies: its small ones cost a pass less
than a copy of all costs the start."""


def load(path: Path, size: int) -> tuple[Tensor, Tensor]:
    """-> UInt8[size], the first bytes of a file in large pages, and UInt8[bytes], the whole file mapped.

    They are the same memory where the file's own pages are large: Linux's page cache has such pages for some
    file systems (XFS; ext4 from 6.16 on) and reads into them what is mapped so. Raises OSError, ValueError.
    """
    import torch

    with open(path, "rb") as file:
        # copy-on-write, for torch knows no read-only memory
        block = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = torch.frombuffer(block, dtype=torch.uint8)  # keeps the block alive
    large = _touch(block, whole, size // LARGE_PAGE * LARGE_PAGE)
    if size and large >= ENOUGH * size:
        return whole[:size], whole
    buffer = _read(path, size)
    if large:  # the file system has large pages, but read this file into small ones: next time it needn't
        block.madvise(mmap.MADV_DONTNEED)
        forget(path)
    return buffer, whole


def forget(path: Path) -> None:
    """Drop a file that is on the disk from the page cache: what was written lies there in small pages, and
    what is read back through `load` in large ones."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _touch(block: mmap.mmap, whole: Tensor, size: int) -> int:
    """Read the first `size` bytes of a mapped file (a multiple of LARGE_PAGE) -> those in large pages."""
    import torch

    if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    try:
        block.madvise(mmap.MADV_HUGEPAGE, 0, size)
    except OSError:  # a kernel without large pages
        return 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda part: part[::LARGE_PAGE].amax(), torch.split(whole[:size], READ_BYTES)))
    return _large_bytes(whole.data_ptr())


def _large_bytes(address: int) -> int:
    """Bytes in large pages of the mapping that starts at an address, 0 where the system doesn't say."""
    found = False
    try:
        with open("/proc/self/smaps") as file:
            for line in file:
                found = found or line.startswith(f"{address:x}-")
                if found and line.startswith("FilePmdMapped:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _read(path: Path, size: int) -> Tensor:
    """The first `size` bytes of a file in large pages of their own, read by several threads."""
    buffer = allocate(size)
    view = memoryview(buffer.numpy().data)

    def part(start: int) -> None:
        end = min(start + READ_BYTES, size)
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            while start < end:
                count = file.readinto(view[start:end])
                if not count:
                    raise ValueError("it ends too early")
                start += count

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(part, range(0, size, READ_BYTES)))
    return buffer
