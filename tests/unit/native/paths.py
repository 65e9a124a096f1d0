"""Running a test on each form of the kernels that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taslak.native.build import extension

PATHS = extension.paths() if extension is not None else []


@contextmanager
def on_path(name: str) -> Iterator[None]:
    before = extension.path()
    extension.use(name)
    try:
        yield
    finally:
        extension.use(before)
