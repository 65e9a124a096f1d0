"""The repository keeps its promises: commands in one wording, generated text current, imports checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/taslak demo"
TEST = 'python3 -m venv .venv && .venv/bin/pip install -e ".[test]" && .venv/bin/python -m pytest'


def shell_blocks(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_readme_opens_with_the_two_commands() -> None:
    assert [block.strip() for block in shell_blocks(README)[:2]] == [RUN, TEST]


def test_ci_runs_the_readmes_test_command_letter_by_letter() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert TEST in [line.strip() for line in lines]


def test_the_readme_states_the_python_versions_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.10"
    assert "Python >= 3.10" in README


def test_core_is_forbidden_every_dependency_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.match(r"[\w-]+", line)[0] for line in project["project"]["dependencies"]}  # type: ignore[index]
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden")
    assert contract["source_modules"] == ["taslak.core"]
    assert names - {"torch"} <= set(contract["forbidden_modules"])


def test_contributing_gives_every_dependency_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    every = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    missing = [n for n in (re.match(r"[\w-]+", line)[0] for line in every) if n not in contributing]  # type: ignore[index]
    assert missing == []


@pytest.mark.parametrize("script", ["tables", "cli-docs", "figures"])
def test_generated_text_is_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script, "--check"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_tables_are_made_from_the_results(tmp_path: Path) -> None:
    names: dict[str, object] = {"__file__": str(ROOT / "scripts" / "tables"), "__name__": "tables"}
    exec(compile((ROOT / "scripts" / "tables").read_text(), "tables", "exec"), names)
    names["RESULTS"] = tmp_path
    (tmp_path / "speed.json").write_text(
        '{"table": {"columns": ["what", "tokens/s"], "rows": [["plain", 12.345], ["ngram", 3]]},'
        ' "requirements": [{"name": "faster", "asked": ">= 1", "measured": null, "holds": true}]}'
    )
    page = "a\n<!-- table: {} -->\nold\n<!-- end -->\nb\n"
    render = names["render"]
    assert callable(render)
    assert "| plain | 12.3 |\n| ngram | 3 |\n<!-- end -->" in render(page.format("speed"))
    assert "| what | tokens/s |\n| --- | ---: |\n" in render(page.format("speed"))
    assert "| faster | >= 1 | – | yes |" in render(page.format("speed.requirements"))
    assert render(page.format("absent")) == page.format("absent")
