"""`taslak train` as a user runs it, on a tiny target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Taslak

COMMON = (
    "--dtype",
    "float32",
    "--max-tokens",
    "16",
    "--max-length",
    "60",
    "--batch-tokens",
    "80",
    "--no-plot",
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"prompt {i}\n" for i in range(10)))
    return file


def test_train_and_decode(taslak: Taslak, model: str, prompts: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "head")
    asked = (
        "train",
        "medusa",
        "--model",
        model,
        "--prompts",
        str(prompts),
        "--out",
        out,
        "--heads",
        "2",
        *COMMON,
    )
    result = taslak(*asked, "--draft-vocab", "100")
    assert result.code == 0, result.err
    assert f"--draft {out}" in result.out
    for told in ("answering prompts: 10 of 10", "hidden states: ", "training: ", "held-out loss", "hazards"):
        assert told in result.err, told
    found = taslak(
        "generate", "Hi", "--model", model, "--draft", out, "--dtype", "float32", "--compare", "--json"
    )
    assert found.code == 0, found.err
    assert json.loads(found.out)["speculative"]["method"] == "suffix+medusa"
    assert json.loads(found.out)["identical"] is True


def test_a_share_of_the_answers(taslak: Taslak, model: str, prompts: Path, tmp_path: Path) -> None:
    asked = (
        "train",
        "eagle",
        "--model",
        model,
        "--prompts",
        str(prompts),
        "--out",
        str(tmp_path / "o"),
        *COMMON,
    )
    result = taslak(*asked, "--shard", "1/3")
    assert result.code == 0, result.err
    assert result.out.startswith("3 answers in ")
    assert not (tmp_path / "o" / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--prompts", "{bad}"), "bad.jsonl:2: not JSON"),
        (("--prompts", "{good}", "--shard", "3/3"), "expected i/n"),
        (("--prompts", "{good}", "--captures", "1,x,3"), "--captures is '1,x,3'"),
        (("--prompts", "{good}", "--heads", "3"), "method eagle has no setting heads"),
        (("--prompts", "{good}", "--draft-vocab", "999"), "draft_vocab is 999"),
        ((), "give prompts for the target to answer"),
    ],
)
def test_a_mistake_is_one_line(
    taslak: Taslak, model: str, prompts: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "fine"}\nbroken\n')
    filled = [option.format(bad=bad, good=prompts) for option in options]
    result = taslak("train", "eagle", "--model", model, "--out", str(tmp_path / "o"), *COMMON, *filled)
    assert result.code == 2
    assert len(result.error_lines) == 1
    assert says in result.err
