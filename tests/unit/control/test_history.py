"""The history: nothing counted is lost, several processes may write, no fault of a file reaches an answer."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.control.database import Database, set_aside
from taslak.control.history import History
from taslak.control.record import (
    DAY,
    MONTH,
    OTHERS,
    Record,
    context_band,
    mean_speedup,
    merge,
    temperature_band,
)
from taslak.control.summary import KEYS, add_up, group, over_time, price
from taslak.core.counts import Counts
from taslak.engine.sequence import Seconds
from taslak.errors import OptionError, UserError
from tests.support.records import record

T = 1.8e9
ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    history = History(path)
    yield history
    history.close()


def fill(path: Path, count: int, **other: Any) -> list[Record]:
    """So many records, a second apart, in a file that is closed again."""
    made = [record(T + i, **other) for i in range(count)]
    history = History(path)
    for each in made:
        history.add(each)
    history.close()
    assert history.lost == 0
    return made


def totals(records: list[Record]) -> dict[str, Any]:
    """All that is counted."""
    whole = add_up("", records)
    prompts = sum(each.prompt_tokens for each in records)
    requests = sum(each.requests for each in records)
    return {**asdict(whole.counts), "tokens": whole.tokens, "prompts": prompts, "requests": requests}


# -- bands and groups ---------------------------------------------------------------------------------------


def test_bands_include_their_upper_end() -> None:
    edges = (0.0, 9e-6, 0.3, 0.5, 0.51, 0.8, 1.0, 1.01)
    names = [temperature_band(t) for t in edges]
    assert names == ["greedy", "greedy", "≤ 0.5", "≤ 0.5", "≤ 0.8", "≤ 0.8", "≤ 1.0", "> 1.0"]
    assert [context_band(n) for n in (0, 64, 65, 256, 65536, 65537)] == [
        *("≤ 64", "≤ 64", "≤ 256", "≤ 256", "≤ 65536", "> 65536")
    ]


records = st.builds(
    record,
    ended=st.floats(T, T + 100 * 86400),
    lengths=st.lists(st.integers(0, 4), max_size=6),
    model=st.sampled_from(["m", "n"]),
    method=st.sampled_from(["ngram", "eagle", "plain"]),
    verify=st.sampled_from(["coupled", "rejection"]),
    task=st.sampled_from(["", "code", "çeviri"]),
    temperature=st.floats(0, 2),
    prompt_tokens=st.integers(1, 5000),
    seconds=st.builds(Seconds, *[st.floats(0, 100)] * 3),
    speedup=st.none() | st.floats(0.1, 10),
    request=st.sampled_from(["a", "b", "c"]),
)


@given(st.lists(records, max_size=30), st.sampled_from([DAY, MONTH]))
def test_merging_loses_no_counts(made: list[Record], level: int) -> None:
    before = [asdict(each) for each in made]
    merged = merge(made, level)
    assert totals(merged) == totals(made)
    assert [asdict(each) for each in made] == before  # not used up
    keys = [each.merge_key(level) for each in merged]
    assert len(set(keys)) == len(keys)
    # a record that stands for many lies in the bands of those it stands for, and no speed-up changes
    month = level == MONTH
    assert set(keys) == {replace(each, task=OTHERS if month else each.task).merge_key(level) for each in made}
    assert mean_speedup(merged) == (None if mean_speedup(made) is None else pytest.approx(mean_speedup(made)))
    assert merge(merged, level) == merged


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"method": "eagle"},
        {"verify": "rejection"},
        {"task": "code"},
        {"temperature": 1.0},
        {"prompt_tokens": 5000},
        {"speedup": None},
        {"ended": T + 86400},
    ],
)
def test_what_is_told_apart_stays_apart(other: dict[str, Any]) -> None:
    one = record(T)
    two = record(**{"ended": T, **other})
    assert len(merge([one, two], DAY)) == 2
    assert merge([one, one], DAY)[0].requests == 2
    assert len(merge([one, two], MONTH)) == (1 if other.keys() & {"task", "ended"} else 2)


@given(st.lists(records, max_size=20), st.sampled_from(sorted(KEYS)))
def test_groups_add_up_to_the_whole(made: list[Record], by: str) -> None:
    groups = group(made, by)
    assert totals([each for of in groups.values() for each in of]) == totals(made)
    counts = Counts()
    for key, of in groups.items():
        assert {KEYS[by](each) for each in of} == {key}
        counts.add(add_up(key, of).counts)
    assert counts == add_up("", made).counts


@given(st.lists(records, min_size=1, max_size=20), st.integers(1, 7))
def test_stretches_of_time_add_up_to_the_whole(made: list[Record], parts: int) -> None:
    times = [each.ended for each in made]
    counts = Counts()
    for part in over_time(made, min(times), max(times), parts):
        counts.add(part)
    assert counts == add_up("", made).counts


def test_a_request_of_two_methods_is_one_request() -> None:
    both = [record(T, method="ngram", request="a"), record(T, method="eagle", request="a")]
    whole = add_up("", [*both, record(T, request="", requests=5)])
    assert whole.requests == 6


def test_the_speedup_of_many_is_of_their_times() -> None:
    """Two answers that take 2 s plainly each; one takes 2 s, the other 0.5 s."""
    slow = record(seconds=Seconds(0, 2, 0), speedup=1.0)
    quick = record(seconds=Seconds(0, 0.5, 0), speedup=4.0)
    whole = add_up("", [slow, quick])
    assert whole.speedup == pytest.approx(4 / 2.5)
    assert whole.cost(3600.0) == pytest.approx(2.5 / whole.tokens * 1e6)
    assert whole.plain_cost(3600.0) == pytest.approx(4 / whole.tokens * 1e6)
    assert add_up("", [record(speedup=None)]).plain_cost(1.0) is None
    assert whole.cost(3600.0) == price(whole.tokens_per_second or 0.0, 3600.0), "as advice has it"
    assert add_up("", [record(seconds=Seconds())]).cost(1.0) is None, "not for nothing"


def test_groups_come_in_their_natural_order() -> None:
    made = [record(T, temperature=t, tokens=n) for t, n in ((2.0, 9), (0.0, 1), (0.7, 5))]
    assert list(group(made, "temperature")) == ["greedy", "≤ 0.8", "> 1.0"]
    made = [record(T, task=task, tokens=n) for task, n in (("few", 1), ("many", 9))]
    assert list(group(made, "task")) == ["many", "few"]
    with pytest.raises(OptionError, match=r"colour.*method, task"):
        group([], "colour")


# -- the file -----------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out(history: History, path: Path) -> None:
    made = [
        record(T, task="code", gamma=None),
        record(T + 1, lengths=[], speedup=None),
        record(T + 2, method="eagle", model="ünlü/model"),
    ]
    for each in made:
        history.add(each)
    assert history.select() == made
    history.close()
    assert History(path).select() == made
    assert not path.with_name("history.sqlite-wal").exists()


def test_select_and_summary_take_conditions(history: History) -> None:
    for i in range(6):
        history.add(record(T + i, method=("ngram", "eagle")[i % 2], task="code" if i < 2 else ""))
    assert [each.ended - T for each in history.select(T + 1, T + 4)] == [1, 2, 3]
    assert [each.ended - T for each in history.select(method="eagle", task="")] == [3, 5]
    assert history.select(model="other") == []
    ngram, eagle = history.summary("method", T + 1)
    assert (eagle.key, eagle.requests, ngram.key, ngram.requests) == ("ngram", 2, "eagle", 3)
    assert ngram.counts.hazards == [0.75, 2 / 3, 0.5, 1.0]
    assert (ngram.counts.alpha, ngram.counts.tau) == (7 / 4, 11 / 4)


def test_adding_costs_the_caller_next_to_nothing(history: History) -> None:
    history.add(record())  # starts the thread
    one, taken = record(), []
    for _ in range(2000):
        began = time.perf_counter()
        history.add(one)
        taken.append(time.perf_counter() - began)
    assert sorted(taken)[1900] < 2e-4
    assert history.flush(20)
    assert len(history.select()) == 2001


def test_a_slow_disk_does_not_hold_up_the_caller(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    insert = Database.insert
    monkeypatch.setattr(Database, "insert", lambda *of: go_on.wait(20) and insert(*of))
    monkeypatch.setattr("taslak.control.history.MOST_WAITING", 50)
    for _ in range(200):
        history.add(record())
    assert not history.flush(0.01)
    assert history.lost >= 100  # memory is bounded, too
    go_on.set()
    assert len(history.select()) + history.lost == 200


def test_only_what_is_no_number_is_lost(history: History, caplog: pytest.LogCaptureFixture) -> None:
    history.add(record(T))
    for broken in ({"temperature": float("nan")}, {"tokens": 1 << 70}, {"task": object()}):
        history.add(record(T + 1, **broken))
    history.add(record(T + 2))
    assert [each.ended for each in history.select()] == [T, T + 2]
    assert history.lost == 3
    assert len(caplog.records) == 1


def test_the_size_is_bound_and_nothing_counted_is_lost(path: Path) -> None:
    made = [
        record(T + 3600 * i, lengths=[i % 5], method=("ngram", "eagle")[i % 2], speedup=1.0 + i % 3)
        for i in range(480)  # of 20 days
    ]
    history = History(path, most_rows=100)
    for start in range(0, 480, 60):
        for each in made[start : start + 60]:
            history.add(each)
        history.flush()
    kept = history.select()
    assert len(kept) <= 100
    assert totals(kept) == totals(made)
    assert mean_speedup(kept) == pytest.approx(mean_speedup(made))
    single = [each for each in kept if each.requests == 1]
    assert single == made[-len(single) :]  # the newest keep every detail
    assert len(single) > 20
    by_day = {s.key: s.counts for s in history.summary("day")}
    assert by_day == {key: add_up(key, of).counts for key, of in group(made, "day").items()}
    history.close()


def test_labels_without_end_are_bound_too(path: Path) -> None:
    """A label of its own for every request: days alone would save nothing."""
    history = History(path, most_rows=100)
    made = [record(T + 86400 * i / 4, task=f"request {i}") for i in range(400)]
    for start in range(0, 400, 50):
        for each in made[start : start + 50]:
            history.add(each)
        history.flush()
    kept = history.select()
    assert len(kept) <= 100
    assert totals(kept) == totals(made)
    assert OTHERS in {each.task for each in kept}
    assert kept[-1] == made[-1]
    history.close()


def test_the_size_in_bytes_is_bound(path: Path) -> None:
    history = History(path, most_bytes=256 << 10)
    sizes = []
    for batch in range(8):
        for i in range(300):
            history.add(record(T + batch * 300 + i, lengths=[4] * 30))
        history.flush()
        sizes.append(sum(file.stat().st_size for file in path.parent.glob("history.sqlite*")))
    history.close()
    assert sum(each.requests for each in History(path).select()) == 2400
    assert path.stat().st_size < 300 << 10
    assert max(sizes) < 1 << 20  # with the log of a batch


def test_space_is_given_back(path: Path) -> None:
    fill(path, 2000)
    before = path.stat().st_size
    history = History(path, most_rows=100)
    history.add(record(T + 2000))
    history.close()
    assert path.stat().st_size < before / 4


@settings(max_examples=15, deadline=None)
@given(made=st.lists(records, min_size=11, max_size=60))
def test_rolling_up_a_file_loses_no_counts(
    made: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    history = History(tmp_path_factory.mktemp("rolled") / "h.sqlite", most_rows=10)
    for each in made:
        history.add(each)
    assert totals(history.select()) == totals(made)
    history.close()


WRITER = """
import sys
from pathlib import Path
from taslak.control import history as module
from tests.support.records import record
module.BATCH_SECONDS = 1000.0
history = module.History(Path(sys.argv[1]), most_rows=200)
print("ready", flush=True)
for i in range(600):
    history.add(record(1.8e9 + i, task="theirs"))
    if i % 20 == 0:
        history.flush()
"""
"""Ends without closing, while some wait to be written."""


def test_two_processes_write_and_roll_up_one_file(path: Path) -> None:
    history = History(path, most_rows=200)
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        ours = 0
        while other.poll() is None:
            history.add(record(T + ours, task="ours"))
            history.flush()
            ours += 1
    assert other.returncode == 0
    assert ours > 20
    sums = {s.key: (s.requests, s.counts.passes) for s in history.summary("task")}
    assert sums == {"theirs": (600, 2400), "ours": (ours, 4 * ours)}
    assert history.lost == 0
    assert len(history.select()) <= 202
    history.close()
    assert not list(path.parent.glob("*.damaged*"))


# -- faults -------------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 500)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10_000])


def broken_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def broken_texts(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"[4, 3, 2, 1]", b"[4, 3, \xff\xfe 1]"))


DAMAGE = [garbage, truncated, broken_pages, broken_texts]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("reading", [False, True])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    path: Path, damage: Any, reading: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill(path, 400)
    damage(path)
    left = path.read_bytes()
    path.with_name("history.sqlite-wal").write_bytes(b"its log")
    history = History(path, most_rows=200)  # a roll-up reads the old rows
    if reading:
        assert history.select() == []
    new = record(T + 1000)
    history.add(new)
    assert history.select() == [new]
    assert history.lost == 0
    history.close()
    aside = sorted(path.parent.glob("*.damaged-*"))
    assert aside[0].read_bytes()[:1000] == left[:1000]
    assert aside[0].stat().st_size >= len(left)
    assert not path.with_name("history.sqlite-wal").exists()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert aside[0].name in caplog.text


def test_a_log_goes_with_its_file_and_only_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_text(f"old{suffix}")
    status = path.stat()
    for _ in range(2):  # the second process finds a new file, and leaves it
        set_aside(path, (status.st_dev, status.st_ino), ValueError("broken"))
        path.write_text("new")
    aside = sorted(file for file in path.parent.glob("*.damaged-*"))
    assert [file.read_text() for file in aside] == ["old", "old-shm", "old-wal"]
    assert [file.name.removeprefix(aside[0].name) for file in aside] == ["", "-shm", "-wal"]
    assert path.read_text() == "new"
    assert len(caplog.records) == 1


def test_a_broken_log_alone_does_no_harm(path: Path) -> None:
    made = fill(path, 5)
    path.with_name("history.sqlite-wal").write_bytes(b"\x00\xff" * 5000)
    path.with_name("history.sqlite-shm").write_bytes(b"\xff" * 32768)
    history = History(path)
    assert history.select() == made
    history.add(record(T + 9))
    assert len(history.select()) == 6
    history.close()
    assert not list(path.parent.glob("*.damaged*"))


def test_a_file_that_is_removed_is_begun_again(history: History, path: Path) -> None:
    history.add(record(T))
    history.flush()
    for file in path.parent.glob("history.sqlite*"):
        file.unlink()
    history.add(record(T + 1))
    assert [each.ended for each in history.select()] == [T + 1]


def test_a_newer_file_is_refused_and_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(path, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    history = History(path)
    with pytest.raises(UserError, match=r"newer taslak .*99"):
        history.select()
    history.add(record())
    history.close()
    assert history.lost == 1
    assert "newer taslak" in caplog.text


def test_another_program_s_database_is_not_written_to(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    history = History(path)
    history.add(record())
    history.close()
    assert history.lost == 1
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="another program"):
        history.select()


def test_a_folder_that_cannot_be_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    history = History(tmp_path / "file" / "history.sqlite")
    for _ in range(3):
        history.add(record())
        history.flush()
    assert history.select() == []
    history.close()
    assert history.lost == 3
    assert len(caplog.records) == 1


def test_a_locked_file_is_waited_for_then_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taslak.control.database.BUSY_SECONDS", 0.05)
    fill(path, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    history = History(path)
    for _ in range(2):
        history.add(record(T + 1))
        history.flush()
    assert history.lost == 2
    assert len(history.select()) == 1  # readers don't wait for writers
    other.execute("ROLLBACK")
    other.close()
    history.add(record(T + 2))
    assert len(history.select()) == 2
    history.close()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert "locked" in caplog.text


def test_a_full_disk_is_counted(
    history: History, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history.add(record(T))
    history.flush()
    database = history._database
    assert database is not None

    def shrink(self: Database, records: Any) -> int:
        self._connection.execute("PRAGMA max_page_count = 1")
        return insert(self, records)

    insert = Database.insert
    monkeypatch.setattr(Database, "insert", shrink)
    for i in range(200):
        history.add(record(T + i))
    history.flush()
    assert history.lost == 200
    assert "full" in caplog.text
    assert len(history.select()) == 1


def test_bounds_that_are_too_small_are_refused(path: Path) -> None:
    with pytest.raises(OptionError, match="3 rows"):
        History(path, most_rows=3)


def test_nothing_is_touched_before_it_is_used(path: Path) -> None:
    history = History(path)
    assert history.select() == []
    history.close()
    history.add(record())
    assert history.lost == 1
    assert list(path.parent.iterdir()) == []
