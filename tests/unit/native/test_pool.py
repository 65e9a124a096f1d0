"""The kernels' threads: every task once, whoever asks; forks and changes of mind included."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from taslak import native
from taslak.errors import OptionError
from tests.unit.native.paths import extension as _native


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 1000])
def test_every_task_runs_once_a_job(threads: int, tasks: int) -> None:
    native.set_threads(threads)
    assert native.threads() == threads
    assert _native.run_counted(tasks, 50) == [50] * tasks


def test_workers_that_fell_asleep_come_back() -> None:
    native.set_threads(4)
    for _ in range(5):
        assert _native.run_counted(64, 1) == [1] * 64
        subprocess.run([sys.executable, "-c", ""], check=True)  # longer than workers spin


def test_several_callers_at_once() -> None:
    native.set_threads(3)
    with ThreadPoolExecutor(6) as callers:
        jobs = [callers.submit(_native.run_counted, 20, 500) for _ in range(24)]
        assert all(job.result() == [500] * 20 for job in jobs)


def test_threads_change_while_others_compute() -> None:
    with ThreadPoolExecutor(2) as callers:
        jobs = [callers.submit(_native.run_counted, 20, 2000) for _ in range(2)]
        for count in (1, 4, 2, 3) * 5:
            native.set_threads(count)
        assert all(job.result() == [2000] * 20 for job in jobs)


def test_the_default_is_the_cores_this_process_may_use() -> None:
    _native.set_threads(0)
    assert native.threads() == _native.available_cores() >= 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a settable affinity")
def test_the_default_respects_affinity() -> None:
    script = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from taslak import native; print(native.threads())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    script = (
        "import os; from taslak import _native; _native.set_threads(3); _native.run_counted(9, 9);\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if _native.run_counted(9, 9) == [9] * 9 else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_no_threads_are_refused() -> None:
    with pytest.raises(OptionError, match="threads is 0"):
        native.set_threads(0)
