"""The README's examples with the real model, and its Turkish twin. In small all of it runs in test_guide."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from tests.e2e.conftest import Taslak
from tests.support.pages import ROOT, blocks

REAL = re.compile(r"(echo .* \| )?taslak (generate|models|info)\b(?!.* --draft my-head)")
COMMANDS = [
    command for block in blocks("README.md", "sh") for command in block.commands if REAL.match(command)
]


@pytest.mark.integration
def test_the_python_examples_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("README.md", "python"):
        exec(compile(block.text, "README.md", "exec"), names)
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


def test_there_are_examples() -> None:
    assert len(COMMANDS) >= 6
    assert len(blocks("README.md", "python")) >= 2


def test_the_turkish_readme_has_the_same_blocks() -> None:
    """Commands and code word by word; remarks are in Turkish."""

    def bare(page: str) -> list[tuple[str, str]]:
        every = blocks(page, "sh", "python", "text")
        return [(each.language, re.sub(r"\s+#.*", "", each.text)) for each in every]

    assert bare("README.tr.md") == bare("README.md")


def test_the_turkish_readme_says_the_same() -> None:
    """Section by section: the same links, tables and options, in whatever order Turkish has them."""

    def shape(page: str) -> list[set[str]]:
        text = (ROOT / page).read_text(encoding="utf-8")
        marks = r"\]\((?!README)[^)]*\)|<!-- table: [\w.]+ -->|--[a-z][\w-]+|Python >= 3\.\d+"
        return [  # the last section, where to go next, differs: the guide is in English
            {mark.replace("_tr", "") for mark in re.findall(marks, part)}
            for part in re.split(r"^## ", text, flags=re.MULTILINE)
        ]

    assert shape("README.tr.md")[:-1] == shape("README.md")[:-1]
