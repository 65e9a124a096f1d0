"""Running a test on each form of the kernels that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from taslak.models.decoder import Decoder
from taslak.models.target import chain_rows
from taslak.native.build import BUILT
from tests.support.widths import cache_bits

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


def check_every_path(model: Decoder) -> None:
    """All forms of the kernels give the same logits, and leave the same K and V."""
    tokens = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    bits = []
    for path in PATHS:
        cache = model.allocate(90)
        with on_path(path):
            logits = model.forward([chain_rows(cache, tokens, 90)]).logits
        cache.keep(range(90))
        bits.append((logits, cache_bits(model, cache)))
        cache.release()
    assert all(torch.equal(a, b) for other in bits for a, b in zip(bits[0], other, strict=True))
