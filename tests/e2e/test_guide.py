"""The commands and Python blocks of the README and the guides, run in the order of each page.

A reader's desk stands in for the real thing: the models that the pages name lie there, tiny and random, and
what takes long is asked for in small. What can't be run here is marked `text` in the pages; its commands are
parsed.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer

from taslak.cli.app import app
from taslak.drafters import formats
from taslak.models.pretrained import load_pretrained
from tests.e2e.conftest import Taslak
from tests.support.checkpoint import write_model
from tests.support.heads import head_for
from tests.support.pages import PAGES, ROOT, Block, blocks
from tests.support.process import Process, serving

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TARGET = "smollm2-135m-instruct"
MODELS = (TARGET, "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct")
HEAD = "path/to/head"
FILES = {
    "prompts.jsonl": "".join(json.dumps({"prompt": f"abc abc {i} abc"}) + "\n" for i in range(12)),
    "few.txt": "abc abc abc\nxyxyxyxy\n",
    "person.json": '{"type": "object", "properties": {"age": {"enum": [1, 2]}}, "required": ["age"]}',
    "date.lark": 'start: /[0-9]{2}/ "-" /[0-9]{2}/',
}
SMALL = {
    "generate": "--max-tokens 8",
    "advise": "--seconds 1 --max-tokens 8",
    "bench": "--gamma 2 --temperature 0 --context 0 --batch 1 --max-tokens 4 --each 1 --repeats 1"
    " --no-report",
    "train": "--dtype float32 --max-tokens 16 --max-length 60 --batch-tokens 80 --epochs 1 --no-plot",
    "verify": "--samples 40 --max-tokens 8 --seeds 1 --prompts few.txt",
}
"""Added to a command; of an option given twice the last counts."""
INSTEAD = {"--exit-layer 27": "--exit-layer 2"}
"""Of the pages' words, those that don't fit a model of three layers."""
SERVER = re.compile(r"http://(127\.0\.0\.1|localhost):8000")
NOT_HERE = re.compile(r"python3 -m venv ")
"""Installation, which continuous integration runs as it stands."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, and heads for it of every kind that comes with taslak."""
    folder = tmp_path_factory.mktemp("tiny")
    decoder = load_pretrained(str(write_model(folder / "model", context=4096)), dtype="float32").decoder
    for kind in ("eagle", "medusa", "early-exit"):
        formats.write_head(folder / "heads" / f"{TARGET}-{kind}", head_for(kind, decoder))
    return folder


class Servers:
    """Those that the pages start, each once."""

    def __init__(self, tiny: Path) -> None:
        self._stack, self._tiny = ExitStack(), tiny
        self._running: dict[str, tuple[Process, str]] = {}

    def get(self, command: str) -> tuple[Process, str]:
        """The server of a command, and its address."""
        if command not in self._running:
            words = shlex.split(command)[2:]
            named = [
                f"{'' if '=' in word else f'{word}='}{word.replace(name, str(self._tiny / 'model'))}"
                if (name := word.split("=")[-1]) in MODELS and "--draft" not in words[max(at - 1, 0) : at]
                else word
                for at, word in enumerate(words)
            ]
            self._running[command] = self._stack.enter_context(serving(*named, "--dtype", "float32"))
        return self._running[command]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def servers(tiny: Path) -> Iterator[Servers]:
    running = Servers(tiny)
    yield running
    running.close()


class Reader:
    """Somebody who does what a page says."""

    def __init__(self, taslak: Taslak, servers: Servers, patch: pytest.MonkeyPatch) -> None:
        self._taslak, self._servers, self._patch = taslak, servers, patch
        self._server: tuple[Process, str] | None = None
        self._names: dict[str, Any] = {}

    def do(self, block: Block) -> None:
        if block.language == "python":
            exec(compile(self._at_our_server(block.text), f"{block.page}:{block.line}", "exec"), self._names)
        for command in block.commands if block.language == "sh" else ():
            self._run(command)

    def _run(self, command: str) -> None:
        stdin = ""
        if " | taslak " in command:
            before, command = command.split(" | ", 1)
            stdin = subprocess.run(before, shell=True, check=True, capture_output=True, text=True).stdout
        if NOT_HERE.match(command):
            return
        if command.startswith("pip install "):
            check_installation(command)
        elif command.startswith("taslak serve"):
            self._server = self._servers.get(command)
        elif command.startswith("python examples/"):
            _, script, *args = shlex.split(self._at_our_server(command))
            self._patch.setattr(sys, "argv", [script, *args])
            runpy.run_path(str(ROOT / script), run_name="__main__")
        elif command == "kill -HUP PID":
            assert self._server is not None
            self._server[0].process.send_signal(signal.SIGHUP)
            self._server[0].wait_for("loaded anew")
        else:
            assert command.startswith("taslak "), f"mark it `text`, it isn't run: {command}"
            for theirs, ours in INSTEAD.items():
                command = command.replace(theirs, ours)
            words = shlex.split(self._at_our_server(command))[1:]
            result = self._taslak(*words, *SMALL.get(words[0], "").split(), stdin=stdin)
            assert result.code == 0, f"{command}\n{result.err}"
            assert result.out or stdin or "chat" in words
            assert "not identical" not in result.err

    def _at_our_server(self, text: str) -> str:
        if not SERVER.search(text):
            return text
        self._server = self._server or self._servers.get(f"taslak serve {TARGET}")
        return SERVER.sub(self._server[1], text)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh", "python")])
def test_a_pages_blocks_run(
    page: str, taslak: Taslak, servers: Servers, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MODELS:
        (tmp_path / name).symlink_to(tiny / "model")
    (tmp_path / HEAD).parent.mkdir(parents=True)
    (tmp_path / HEAD).symlink_to(tiny / "heads" / f"{TARGET}-eagle")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(formats, "SHIPPED", tiny / "heads")
    reader = Reader(taslak, servers, monkeypatch)
    for block in blocks(page, "sh", "python"):
        reader.do(block)


COMMAND = re.compile(r"((echo|printf) .*\| )?(taslak|pip|python3?|scripts/\w+|docker|torchrun)\b")
APP: Any = typer.main.get_command(app)
LISTED = [
    (f"{page}:{block.line}", command)
    for page in (*PAGES, "CONTRIBUTING.md", "benchmarks/training/README.md")
    for block in blocks(page, "sh", "text")
    for command in block.commands
    if COMMAND.match(command)
]


@pytest.mark.parametrize(("where", "command"), LISTED)
def test_what_a_command_names_is_there(where: str, command: str) -> None:
    """Options, extras and scripts; also of commands that take hours, or several machines."""
    for part in re.split(r" && | \| ", command):
        words = shlex.split(part)
        if words[0] == "docker":  # what stands behind the image's name goes to `taslak serve`
            words = ["taslak", "serve", *words[words.index("taslak") + 1 :]] if words[1] == "run" else [""]
        if "pip" in words[0]:
            check_installation(part)
        elif "taslak" in words:
            name, *rest = words[words.index("taslak") + 1 :]
            APP.commands[name].make_context(name, rest)
        script = next((word for word in words[:2] if re.match(r"(benchmarks|scripts|examples)/", word)), None)
        assert script is None or (ROOT / script).is_file()


def check_installation(command: str) -> None:
    """The extras that pip is asked for exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"\[([\w,-]+)\]", command)
    assert {name for each in asked for name in each.split(",")} <= set(extras)


def test_there_are_pages() -> None:
    """The parametrised tests above would pass on nothing."""
    assert sum(len(blocks(page, "sh", "python")) for page in PAGES) >= 30
    assert len(LISTED) >= 60
