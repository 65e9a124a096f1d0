"""The CPU kernels: packed weights, products, threads. Knows tensors, not models.

Where `available()` is False, everything is computed with PyTorch and nothing else here may be called.
"""

from taslak.native.build import available, cores, describe, set_threads, threads
from taslak.native.draw import rank_rows, row_draw
from taslak.native.packed import Packed
from taslak.native.products import gated, linear, linear_many
from taslak.native.tensors import allocate

__all__ = [
    "Packed",
    "allocate",
    "available",
    "cores",
    "describe",
    "gated",
    "linear",
    "linear_many",
    "rank_rows",
    "row_draw",
    "set_threads",
    "threads",
]
