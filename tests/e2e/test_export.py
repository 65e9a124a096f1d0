"""`taslak export`: the command stands alone on standard output, and a mistake is one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from taslak.drafters.formats import read_head
from tests.e2e.conftest import Taslak

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_shipped_head_goes_to_sglang(taslak: Taslak, tmp_path: Path) -> None:
    done = taslak("export", "smollm2-135m-instruct-eagle", "--to", "sglang", "--model", MODEL)
    assert done.code == 0, done.err
    (command,) = done.out.splitlines()
    words = shlex.split(command)
    assert words[:5] == ["python", "-m", "sglang.launch_server", "--model-path", MODEL]
    folder = Path(words[words.index("--speculative-draft-model-path") + 1])
    assert folder == tmp_path / "smollm2-135m-instruct-eagle-sglang"
    assert read_head(folder).kind == "eagle"
    assert "γ 4: what the head's file says" in done.err


def test_json_says_it_all(taslak: Taslak) -> None:
    done = taslak("export", "ngram", "--to", "vllm", "--model", MODEL, "--gamma", "4", "--json")
    made = json.loads(done.out)
    assert made["settings"]["num_speculative_tokens"] == made["gamma"] == 4
    assert (made["engine"], made["kind"], made["gamma_from"]) == ("vllm", "ngram", "as asked for")
    assert shlex.split(made["command"])[-1] == json.dumps(made["settings"])


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (("smollm2-135m-instruct-medusa", "--to", "vllm", "--model", MODEL), "medusa"),
        (("smollm2-135m-instruct-early-exit", "--to", "tgi", "--model", MODEL), "first layers"),
        (("ngram", "--to", "vllm"), "--model org/name"),
        (("ngram", "--to", "ollama", "--model", MODEL), "ollama"),
        (("ngram", "--to", "vllm", "--model", MODEL, "--gamma", "0"), "gamma is 0"),
        (("nothing", "--to", "vllm", "--model", MODEL), "nothing"),
    ],
)
def test_a_mistake_is_one_line(taslak: Taslak, args: tuple[str, ...], match: str) -> None:
    done = taslak("export", *args)
    assert (done.code, done.out) == (2, "")
    (line,) = done.error_lines
    assert match in line
