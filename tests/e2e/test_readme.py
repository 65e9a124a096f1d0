"""The examples of the README and the guides, run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Taslak

ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


COMMANDS = [
    line for block in blocks("sh") for line in block.splitlines() if re.match(r"(echo .* \| )?taslak ", line)
]


@pytest.mark.integration
def test_the_python_examples_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "Danube" in printed
    assert names["comparison"].identical


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(taslak: Taslak, command: str) -> None:
    stdin = ""
    if command.startswith("echo "):
        text, command = command.removeprefix("echo ").split(" | ", 1)
        stdin = shlex.split(text)[0] + "\n"
    result = taslak(*shlex.split(command)[1:], stdin=stdin)
    assert result.code == 0, result.err
    assert result.out


@pytest.mark.parametrize("page", sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
def test_the_guides_python_examples_run(page: str) -> None:
    for block in blocks("python", page):
        exec(compile(block, page, "exec"), {})


def test_there_are_examples() -> None:
    assert len(COMMANDS) >= 6
    assert len(blocks("python")) >= 3
