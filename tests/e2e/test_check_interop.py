"""scripts/check-interop: a line for each layout and direction, and an exit code to go by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.interop import LAYOUTS

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check-interop"
DIRECTIONS = ("read", "write", "round trip", "reference")


def test_every_layout_and_direction_has_its_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    found = {(line[8:26].strip(), line[26:48].strip()): line[:8].strip() for line in lines}
    assert {key: found.get(key) for key in ((name, d) for name in LAYOUTS for d in DIRECTIONS)} == {
        (name, direction): "ok" for name in LAYOUTS for direction in DIRECTIONS
    }
    assert all(line.endswith("DIR runs it") for line in lines if line.startswith("skipped"))


def test_what_fails_is_said_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__file__": str(SCRIPT), "__name__": "check_interop"}
    exec(compile(SCRIPT.read_text(encoding="utf-8"), SCRIPT, "exec"), names)
    names["check"]("a layout", "write", lambda: names["exact"](False))
    names["check"]("a layout", "reference", lambda: names["close"](1.0))
    assert names["failed"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["FAILED", "FAILED"]
