"""The example that needs a checkpoint of transformers'. test_guide runs the others, as their page says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.support.checkpoint import write_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f"({example.name})" in listed
        assert f"python examples/{example.name}" in listed


def test_a_model_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "tiny", context=512)
    monkeypatch.setattr(sys, "argv", ["from_transformers.py", str(folder)])
    runpy.run_path(str(EXAMPLES / "from_transformers.py"), run_name="__main__")
    assert "identical: " in capsys.readouterr().out
