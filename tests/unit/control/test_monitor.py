"""The monitor: silent while requests merely differ, speaks up when acceptance changes, and when that ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taslak.control import monitor as module
from taslak.control.monitor import BELOW, CHANGE, Event, Monitor
from taslak.control.record import Record
from taslak.control.window import Window
from tests.support.records import record

Feed = Callable[..., list[Event]]


class Source:
    """Requests one after another; each has a hazard of its own around the one asked for."""

    def __init__(self, monitor: Monitor, seed: int = 0) -> None:
        self.monitor = monitor
        self.time = 0.0
        self._random = np.random.default_rng(seed)

    def request(
        self, hazard: float, spread: float = 0.1, drafts: int = 30, depth: int = 5, **other: Any
    ) -> Record:
        self.time += 1.0
        if spread:
            both = hazard * (1 - hazard) / spread**2 - 1
            hazard = self._random.beta(hazard * both, (1 - hazard) * both)
        lengths = np.minimum(self._random.geometric(1 - hazard, drafts) - 1, depth)
        return record(self.time, [int(length) for length in lengths], depth, **other)

    def feed(self, count: int, hazard: float, **other: Any) -> None:
        for _ in range(count):
            self.monitor.record(self.request(hazard, **other))


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def least() -> dict[str, float | None]:
    """The break-even, to be changed by tests."""
    return {"rate": None}


@pytest.fixture
def source(told: list[Event], least: dict[str, float | None]) -> Source:
    return Source(Monitor(lambda model, method: least["rate"], [told.append]))


# -- below the break-even -----------------------------------------------------------------------------------


def test_a_drop_below_the_break_even_starts_and_ends_one_event(
    source: Source, told: list[Event], least: dict[str, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    least["rate"] = 0.3
    source.feed(60, 0.7)
    assert told == []
    source.feed(60, 0.2, task="")
    [event] = [event for event in told if event.kind == BELOW]
    assert (event.model, event.method, event.task, event.ended) == ("m", "ngram", "", None)
    assert event.rate < 0.3 == event.reference
    assert 60 < event.started <= 90
    assert event in source.monitor.open_events
    assert source.monitor.counts[BELOW, "m", "ngram"] == 1
    source.feed(60, 0.7)
    over = [event for event in told if event.kind == BELOW][1:]
    assert [(end.started, end.ended is not None, end.rate >= 0.3) for end in over] == [
        (event.started, True, True)
    ]
    assert BELOW not in {event.kind for event in source.monitor.open_events}
    levels = [each.levelno for each in caplog.records if BELOW in each.getMessage()]
    assert levels == [logging.WARNING, logging.INFO]


def test_a_rate_at_the_break_even_does_not_flap(
    source: Source, told: list[Event], least: dict[str, float | None]
) -> None:
    source.feed(200, 0.5)
    least["rate"] = source.monitor._watches["m", "", "ngram"].recent.rate
    source.feed(2000, 0.5)
    assert len(told) <= 2


@pytest.mark.parametrize(
    ("method", "cause"),
    [("draft-model", "another family, or was trained for another model"), ("ngram", "repeat little")],
)
def test_low_from_the_start_names_the_drafter(
    source: Source, told: list[Event], least: dict[str, float | None], method: str, cause: str
) -> None:
    least["rate"] = 0.3
    source.feed(40, 0.1, method=method)
    [event] = told
    assert len(event.causes) == 1
    assert cause in event.causes[0]
    assert cause in str(event)


def test_a_break_even_that_rose_is_a_cause(
    source: Source, told: list[Event], least: dict[str, float | None]
) -> None:
    least["rate"] = 0.2
    source.feed(60, 0.6)
    least["rate"] = 0.6
    source.feed(1, 0.6)
    [event] = told
    assert event.causes == ("the break-even: 0.20 before, 0.60 now",)


def test_an_unknown_break_even_raises_nothing(source: Source, told: list[Event]) -> None:
    source.feed(60, 0.02)
    assert told == []


# -- sudden changes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hazard", [0.3, 0.6, 0.85])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15])
def test_requests_that_merely_differ_raise_nothing(
    source: Source, told: list[Event], hazard: float, spread: float
) -> None:
    source.feed(700, hazard, spread=spread)
    assert told == []


def test_drafts_of_a_request_are_not_independent(told: list[Event]) -> None:
    """If they were, these same windows would be dozens of standard errors apart."""
    source = Source(Monitor(lambda *_: None, [told.append]), seed=3)
    source.feed(400, 0.6, spread=0.2, drafts=300)
    assert told == []
    watch = source.monitor._watches["m", "", "ngram"]
    change, error = watch.recent.shift(watch.reference)
    assert abs(change) < 4 * error
    assert error > 0.03
    assert error > 5 * (0.6 * 0.4 / (16 * 300 * 2)) ** 0.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("to", [0.5, 0.95])
def test_a_sudden_change_is_told_soon_and_once(told: list[Event], to: float, seed: int) -> None:
    source = Source(Monitor(lambda *_: None, [told.append]), seed)
    source.feed(200, 0.75)
    assert told == []
    source.feed(30, to, spread=0.05)
    [event] = told
    assert (event.kind, event.task, event.ended) == (CHANGE, "", None)
    assert (event.rate < event.reference) == (to < 0.75)
    assert event.started <= 225


def test_a_change_that_goes_back_is_over(source: Source, told: list[Event]) -> None:
    source.feed(200, 0.75)
    source.feed(20, 0.4)
    source.feed(60, 0.75)
    start, end = told
    assert end == replace(start, rate=end.rate, ended=end.ended)
    assert source.monitor.open_events == ()
    source.feed(200, 0.75)
    assert len(told) == 2  # what was over is not in the reference


def test_a_change_that_stays_becomes_the_usual(source: Source, told: list[Event]) -> None:
    source.feed(200, 0.75)
    source.feed(60, 0.4)
    assert len(told) == 1
    source.feed(60, 0.4)
    start, end = told
    assert end.settled
    assert start.ended is None
    source.feed(200, 0.4)
    assert len(told) == 2
    source.feed(40, 0.75)
    assert [event.kind for event in told[2:3]] == [CHANGE]


def test_longer_drafts_alone_are_no_change(source: Source, told: list[Event]) -> None:
    """Their acceptance rate falls from 0.6 to 0.2, a token's chance stays what it is."""
    for _ in range(4):
        source.feed(60, 0.6, spread=0.05, depth=2)
        source.feed(60, 0.6, spread=0.05, depth=8)
    assert told == []


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        ({"temperature": 0.0}, {"temperature": 1.0}, "temperature: ≤ 1.0 0% of the drafts before"),
        ({"prompt_tokens": 9}, {"prompt_tokens": 4000}, "context length: ≤ 4096 0%"),
        ({"verify": "coupled"}, {"verify": "rejection"}, "verify rule: rejection 0%"),
        ({"tokens": 50}, {"tokens": 250}, "tokens a request: 50 before,"),
        ({"depth": 2}, {"depth": 8}, "drafted depth: 2 before,"),
    ],
)
def test_what_changed_with_it_is_named(
    source: Source, told: list[Event], before: dict[str, Any], now: dict[str, Any], cause: str
) -> None:
    source.feed(100, 0.75, **before)
    source.feed(30, 0.35, **now)
    event = told[0]
    assert any(found.startswith(cause) for found in event.causes), event.causes
    assert "another family" not in str(event)


def test_nothing_is_named_where_nothing_changed(source: Source, told: list[Event]) -> None:
    source.feed(100, 0.75, tokens=100)
    source.feed(30, 0.35, tokens=100)
    assert told[0].causes == ()
    assert "the text itself" in str(told[0])


def test_tasks_are_watched_apart_and_their_mix_together(source: Source, told: list[Event]) -> None:
    hazards = {"code": 0.85, "story": 0.3}
    for i in range(400):
        task = "story" if i % 5 == 0 else "code"
        source.feed(1, hazards[task], task=task, tokens=100)
    assert told == []
    for i in range(60):
        task = "code" if i % 5 == 0 else "story"
        source.feed(1, hazards[task], task=task, tokens=100)
    [event] = [event for event in told if event.ended is None]
    assert event.task is None
    assert "all tasks" in str(event)
    assert [cause.split(" ")[:2] for cause in event.causes] == [["task:", "story"]]


# -- what it is fed -----------------------------------------------------------------------------------------


def test_plain_passes_and_rolled_up_records_say_nothing(
    source: Source, told: list[Event], least: dict[str, float | None]
) -> None:
    least["rate"] = 0.9
    source.feed(50, 0.1, method="plain")
    source.feed(50, 0.1, requests=20)
    source.monitor.record(record(lengths=[]))
    assert told == []
    assert not source.monitor._watches


def test_what_is_learnt_raises_nothing_but_is_known(source: Source, told: list[Event]) -> None:
    source.monitor.learn([source.request(0.75) for _ in range(150)])
    assert told == []
    source.feed(30, 0.3)
    assert [event.kind for event in told] == [CHANGE]


def test_what_once_paid_was_not_low_from_the_start(
    source: Source, told: list[Event], least: dict[str, float | None]
) -> None:
    least["rate"] = 0.3
    source.monitor.learn([source.request(0.75) for _ in range(60)])
    source.feed(30, 0.1, temperature=1.0)
    [event] = [event for event in told if event.kind == BELOW]
    assert event.causes[0].startswith("temperature:")


def test_a_listener_that_fails_is_logged(
    source: Source, told: list[Event], least: dict[str, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    source.monitor.listeners.insert(0, lambda event: 1 / 0)
    least["rate"] = 0.5
    source.feed(40, 0.1)
    assert len(told) == 1
    assert "a listener failed" in caplog.text


def test_labels_without_end_take_bounded_memory(
    source: Source, monkeypatch: pytest.MonkeyPatch, least: dict[str, float | None]
) -> None:
    monkeypatch.setattr(module, "MOST_WATCHES", 5)
    least["rate"] = 0.5
    source.feed(40, 0.1, task="bad")
    assert len(source.monitor.open_events) == 1
    for i in range(50):
        source.feed(1, 0.1, task=f"request {i}")
    assert len(source.monitor._watches) == 5
    source.feed(60, 0.9, task="bad")  # an open event is not forgotten, and ends
    assert BELOW not in {event.kind for event in source.monitor.open_events}


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=2, max_size=12),
    st.integers(0, 11),
)
def test_a_window_is_the_sum_of_what_is_in_it(lengths: list[list[int]], popped: int) -> None:
    made = [record(i, each, temperature=i % 3) for i, each in enumerate(lengths)]
    window, fresh = Window(), Window()
    for each in made:
        window.push(each)
    popped = min(popped, len(made) - 2)
    for _ in range(popped):
        window.pop()
    for each in made[popped:]:
        fresh.push(each)
    assert (window.drafts, window.rate, len(window)) == (fresh.drafts, fresh.rate, len(fresh))
    assert window.rate_error == fresh.rate_error > 0
    assert window.spread == fresh.spread > 0
    assert window.shares("temperature") == fresh.shares("temperature")
    assert window.drafts == sum(len(each) for each in lengths[popped:])
    assert list(window.differences(fresh)) == []
