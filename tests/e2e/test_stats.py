"""`taslak stats`: tables and plots of what was recorded, and one clear line for every mistake."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from taslak.cli.errors import run
from taslak.cli.stats import stats
from taslak.control.history import History
from taslak.engine.sequence import Seconds
from taslak.models.loading import cache_home
from tests.e2e.conftest import Result
from tests.support.records import record

T = 1_800_000_000.0  # 2027-01-15
DAY = 86400.0

Stats = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Stats:
    """Runs the command: call("--by", "task")."""
    app = typer.Typer()
    app.command()(stats)

    def called(*args: str) -> Result:
        capsys.readouterr()
        code = run(typer.main.get_command(app), args)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return called


@pytest.fixture
def recorded() -> Path:
    """Ten days: look-ups get worse, the head stays; 8 tokens in 2 s each, and 4 s plainly."""
    history = History()
    for i in range(10):
        same: dict[str, Any] = {"tokens": 8, "seconds": Seconds(0.5, 1.0, 0.5), "speedup": 2.0}
        good = 4 if i < 5 else 0
        history.add(record(T + i * DAY, [good] * 4, task="code", draft_bytes=0, **same))
        history.add(record(T + i * DAY, [2] * 4, method="eagle", draft_bytes=70_000_000, **same))
    history.close()
    return history.path


def mistake(result: Result, *words: str) -> None:
    assert (result.code, result.out) == (2, ""), result
    assert len(result.error_lines) == 1
    for word in words:
        assert word in result.err


def test_nothing_recorded_yet_is_no_fault(call: Stats) -> None:
    result = call()
    assert (result.code, result.err) == (0, "")
    assert "nothing recorded yet" in result.out
    assert not cache_home().exists()
    assert json.loads(call("--json").out)["groups"] == []


def test_tables_and_a_plot(call: Stats, recorded: Path) -> None:
    result = call("--price-per-hour", "1.80")
    assert (result.code, result.err) == (0, "")
    assert "…" not in result.out  # nothing was cut off
    lines = [line.strip() for line in result.out.splitlines()]
    assert [line.split()[1:] for line in lines if line.startswith("method")] == [
        ["requests", "tokens", "accepted", "α", "τ", "over", "time"],
        ["tokens/s", "speed-up", "draft", "memory", "cost", "1M", "plain", "1M"],
        ["draft", "/", "pass", "/", "other", "hazards", "by", "depth"],
    ]
    often, gains, ends = (line for line in lines if line.startswith("ngram"))
    assert often.split() == ["ngram", "10", "80", "0.50", "2.00", "3.00", "█████▁▁▁▁▁"]
    # 20 s at 1.80 an hour are 0.01; a million tokens are 12,500 times as many as 80
    assert gains.split() == ["ngram", "4.0", "2.00", "0", "MB", "125.00", "250.00"]
    assert ends.split() == ["ngram", "25%", "/", "50%", "/", "25%", "0.50", "1.00", "1.00", "1.00"]
    assert any(line.startswith("eagle") and "70 MB" in line for line in lines)
    total = next(line for line in lines if line.startswith("total"))
    assert total.split()[:3] == ["total", "10", "160"]  # a request of two methods is one
    top = next(line for line in lines if line.startswith("1.0 │"))
    bottom = next(line for line in lines if line.startswith("0.0 │"))
    assert top.count("█") == 0
    assert bottom.count("█") == 10
    assert lines[-1].split() == ["2027-01-15", "08:00", "2027-01-24", "08:00"]


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("task", {"code", "m"}),
        ("temperature", {"greedy"}),
        ("context", {"≤ 64"}),
        ("model", {"m"}),
        ("day", {f"2027-01-{day}" for day in range(15, 25)}),
    ],
)
def test_by(call: Stats, recorded: Path, by: str, keys: set[str]) -> None:
    told = json.loads(call("--by", by, "--json").out)
    found = {group["key"] for group in told["groups"]}
    assert found == ({"code", ""} if by == "task" else keys)
    assert sum(group["accepted"] for group in told["groups"]) == told["total"]["accepted"] == 160


def test_long_names_that_end_alike_stay_apart(call: Stats) -> None:
    history = History()
    for i, name in enumerate(("/models/first/model-1.5b.gguf", "/models/second/model-1.5b.gguf", "total")):
        history.add(record(T + i, model=name, tokens=100 * (i + 1)))
    history.close()
    result = call("--by", "model")
    assert [line.split()[2] for line in result.out.splitlines()[3:7]] == ["300", "200", "100", "600"]


def test_json_is_complete(call: Stats, recorded: Path) -> None:
    told = json.loads(call("--json", "--price-per-hour", "1.80").out)
    ngram = next(group for group in told["groups"] if group["key"] == "ngram")
    assert ngram["acceptance_rate"] == 0.5
    assert ngram["hazards"] == [0.5, 1, 1, 1]
    assert ngram["seconds"] == {"draft": 5, "pass": 10, "other": 5}
    assert (ngram["speedup"], ngram["cost_per_million_tokens"]) == (2, pytest.approx(125))
    assert ngram["plain_cost_per_million_tokens"] == pytest.approx(250)
    assert told["history"] == str(recorded)
    over_time = told["over_time"]
    assert (over_time["from"], over_time["to"]) == (T, T + 9 * DAY)
    assert [rate for rate in over_time["acceptance_rate"] if rate is not None] == [0.75] * 5 + [0.25] * 5
    assert "cost_per_million_tokens" not in json.loads(call("--json").out)["total"]


def test_since_and_model(call: Stats, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def requests(*args: str) -> int:
        return int(json.loads(call("--json", *args).out)["total"]["requests"])

    assert requests("--since", "2027-01-20") == 5
    assert requests("--since", "2027-01-20T08:00:01") == 4
    assert requests("--since", "2027-01-20T10:00+02:00") == 5
    monkeypatch.setattr(time, "time", lambda: T + 10 * DAY)
    assert requests("--since", "3d") == 3
    assert requests("--since", "1w") == 7
    assert requests("--since", "24.5h") == 1
    assert requests("--model", "m") == 10
    assert "nothing that was asked for recorded" in call("--model", "other").out


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_in_a_file(call: Stats, recorded: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"acceptance{suffix}"
    result = call("--plot", str(file))
    assert result.code == 0
    assert str(file) in result.err
    assert "acceptance rate over time" in result.out
    if suffix == ".png":
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_mistakes_are_one_line(
    call: Stats, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(call("--since", "yesterday"), "yesterday", "7d", "2026-11-01")
    mistake(call("--since", ""), "expected an age")
    mistake(call("--by", "colour"), "colour", "temperature")
    mistake(call("--price-per-hour", "-1"), "-1")
    mistake(call("--plot", "a.gif"), "a.gif", ".svg")
    mistake(call("--plot", str(tmp_path / "none" / "a.png")), "no folder")
    mistake(call("--history", str(tmp_path / "none")), "no file")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    mistake(call("--plot", "a.png"), "the extra `train`")


def test_a_file_that_is_no_history_stays_what_it_is(call: Stats, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("mine, and long enough to be mistaken for something")
    mistake(call("--history", str(text)), "notes.txt", "SQLite")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    mistake(call("--history", str(tmp_path / "other.db")), "another program")
    assert {file.name for file in tmp_path.iterdir()} == {"notes.txt", "other.db"}


def test_a_damaged_history_is_told_and_no_fault(
    call: Stats, recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.write_bytes(recorded.read_bytes()[:5000])
    result = call()
    assert result.code == 0
    assert "nothing recorded yet" in result.out
    assert "damaged" in caplog.text


def test_help_needs_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, taslak.cli.stats\n"
        "sys.exit(bool({'torch', 'numpy', 'sqlite3', 'matplotlib', 'rich.table'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
