"""Whether the compiled kernels are there, and how they run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from taslak.errors import OptionError

__all__ = ["BUILT", "available", "cores", "describe", "extension", "set_threads", "threads"]

if TYPE_CHECKING:
    from taslak import _native as extension

    BUILT = True
else:
    try:
        from taslak import _native as extension

        BUILT = True
    except ImportError:  # installed without a C++ compiler
        extension = None
        BUILT = False

_NAMES = {"avx512vnni": "AVX-512 VNNI", "avxvnni": "AVX-VNNI", "avx2": "AVX2", "scalar": "portable"}


def available() -> bool:
    """Whether the kernels were built and this processor has a vector path: the portable one is for tests."""
    return BUILT and extension.paths()[0] != "scalar"


def describe() -> str:
    """Which path runs, for people: "native AVX2, 2 threads", or PyTorch and why."""
    if not BUILT:
        return "PyTorch: the native kernels were not built (no C++17 compiler at installation?)"
    if not available():
        return "PyTorch: the native kernels need AVX2 and FMA, which this processor lacks"
    count = threads()
    return f"native {_NAMES[extension.path()]}, {count} thread{'s' if count != 1 else ''}"


def threads() -> int:
    """Threads the kernels use, the caller's included; at first the physical cores this process may use."""
    return int(extension.threads())


def cores() -> int:
    """Physical cores this process may use."""
    return int(extension.available_cores()) if BUILT else os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Use `count` threads from now on, if there are kernels. No result depends on it. Raises OptionError."""
    if count < 1:
        raise OptionError(f"threads is {count}; expected 1 or more")
    if BUILT:
        extension.set_threads(count)
