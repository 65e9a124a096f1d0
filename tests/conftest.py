"""For all tests: one thread is quickest for tiny models, and two test runs side by side don't fight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# how long an example takes says more about the machine's other work than about the code
settings.register_profile("taslak", deadline=None)
settings.load_profile("taslak")


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Real models get the machine's threads, everything else one."""
    before = torch.get_num_threads()
    if "integration" not in Path(request.node.path).parts and "e2e" not in Path(request.node.path).parts:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
