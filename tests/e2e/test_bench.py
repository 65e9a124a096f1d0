"""`taslak bench` as a user runs it, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Taslak

FEW = (
    "--methods", "ngram,suffix", "--gamma", "2,1", "--temperature", "0", "--context", "0", "--batch", "1",
    "--max-tokens", "6", "--repeats", "1", "--each", "1", "--threads", "1",
)  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "question.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["abcabcabc", "again"]},
        {"question_id": 2, "category": "qa", "turns": ["xyxyxyxy"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_bench_writes_results_tables_and_spec_benchs_answers(
    taslak: Taslak, model: str, prompts: Path, tmp_path: Path
) -> None:
    out, answers = tmp_path / "out", tmp_path / "answers.jsonl"
    done = taslak(
        "bench", "--model", model, "--prompts", str(prompts), "--out", str(out), "--no-report", *FEW,
        "--spec-bench", str(answers),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "Speed-up by task" in done.out
    assert "writing" in done.out
    assert "wrote" in done.err
    assert {file.name for file in out.iterdir()} == {"runs.jsonl", "results.json", "tables.md"}
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [(row["question_id"], len(row["choices"][0]["turns"])) for row in rows] == [(1, 2), (2, 1)]
    assert rows[0]["model_id"].endswith("-ngram, γ 2")
    plain = [json.loads(line) for line in (tmp_path / "answers-plain.jsonl").read_text().splitlines()]
    assert [row["choices"][0]["turns"] for row in plain] == [row["choices"][0]["turns"] for row in rows]
    again = taslak(
        "bench", "--model", model, "--prompts", str(prompts), "--out", str(out), "--no-report", *FEW, "--json"
    )
    told = json.loads(again.out)
    assert told["about"]["repeats"] == 1
    assert [row["method"] for row in told["tables"]["Over all prompts"]] == [
        "plain",
        "ngram, γ 2",
        "suffix, γ 2",
    ]


def test_bench_runs_with_few_prompts_and_no_word_about_batches(
    taslak: Taslak, model: str, prompts: Path, tmp_path: Path
) -> None:
    """What is not asked for is fitted to the prompts there are."""
    asked = ("bench", "--model", model, "--prompts", str(prompts), "--out", str(tmp_path / "out"))
    short = (
        "--methods",
        "suffix",
        "--gamma",
        "2",
        "--temperature",
        "0",
        "--context",
        "0",
        "--max-tokens",
        "4",
    )
    done = taslak(*asked, *short, "--repeats", "1", "--max-tokens", "4", "--each", "2", "--no-report")
    assert done.code == 0, done.err
    refused = taslak(*asked, *short, "--batch", "8", "--no-report")
    assert refused.code == 2
    assert "name narrower ones with --batch" in refused.err


def test_bench_tells_mistakes_before_it_loads_anything(taslak: Taslak, tmp_path: Path) -> None:
    for options, message in (
        (["--gamma", "2,x"], "--gamma is '2,x'; expected numbers with commas between them"),
        (["--gamma", "40"], "gamma is 40; expected 1 to 16"),
        (["--methods", "telepathy"], "method is 'telepathy'"),
        (["--task", "cooking"], "there is no task 'cooking'; expected code-completion"),
        (["--prompts", str(tmp_path / "none.jsonl")], "there is no file"),
        (["--no-report", "--png", str(tmp_path)], "--png needs the plots"),
    ):
        done = taslak("bench", "--model", "no-such-model-anywhere", *options)
        assert done.code == 2
        assert len(done.error_lines) == 1
        assert message in done.err
