"""The README's examples, run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Taslak

pytestmark = pytest.mark.integration

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


COMMANDS = [
    line for block in blocks("sh") for line in block.splitlines() if re.match(r"(echo .* \| )?taslak ", line)
]


def test_the_python_examples_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "Danube" in printed
    assert names["comparison"].identical


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(taslak: Taslak, command: str) -> None:
    stdin = ""
    if command.startswith("echo "):
        text, command = command.removeprefix("echo ").split(" | ", 1)
        stdin = shlex.split(text)[0] + "\n"
    result = taslak(*shlex.split(command)[1:], stdin=stdin)
    assert result.code == 0, result.err
    assert result.out


def test_there_are_examples() -> None:
    assert len(COMMANDS) >= 6
    assert len(blocks("python")) >= 3
