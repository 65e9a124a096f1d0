"""Running a test on each form of the kernels that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taslak.native.build import BUILT

if not BUILT:  # installed without a C++ compiler: whoever imports this is skipped with it
    pytest.skip("the native kernels were not built", allow_module_level=True)

from taslak import _native as extension

PATHS = extension.paths()


@contextmanager
def on_path(name: str) -> Iterator[None]:
    before = extension.path()
    extension.use(name)
    try:
        yield
    finally:
        extension.use(before)
