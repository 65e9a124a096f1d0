"""For all tests: one thread is quickest for tiny models, and test processes side by side don't fight."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# how long an example takes says more about the machine's other work than about the code
settings.register_profile("taslak", deadline=None)
settings.load_profile("taslak")


def pytest_configure() -> None:
    """Processes of one run (`-n`) share the cores out: threads of two on one core wait for each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    own = cores[int(worker.removeprefix("gw")) % len(cores) :: workers]
    os.sched_setaffinity(0, own)
    torch.set_num_threads(len(own))


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Real models get the machine's threads, everything else one."""
    before = torch.get_num_threads()
    if "integration" not in Path(request.node.path).parts and "e2e" not in Path(request.node.path).parts:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What becomes of a tiny model does not land in the user's cache; real models come from there."""
    if request.node.get_closest_marker("integration") is None:
        monkeypatch.setenv("TASLAK_HOME", str(tmp_path_factory.getbasetemp() / "home"))
