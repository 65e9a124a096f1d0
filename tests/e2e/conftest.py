"""A tiny random model in a folder, and the command line run in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from taslak.cli import main
from tests.support.checkpoint import write_model


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return self.err.splitlines()


Taslak = Callable[..., Result]


@pytest.fixture
def taslak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Taslak:
    """Runs the command line: taslak("generate", "Hi", stdin="")."""

    def run(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model's folder."""
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))
