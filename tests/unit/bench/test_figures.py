"""Speed-ups, counts and predictions from measurements made up so that the right answer is known."""

from __future__ import annotations

import pytest

from taslak.bench.figures import Figures, reach, speedup
from taslak.bench.grid import PLAINLY, Setting, Way
from taslak.bench.results import Answered, Measurement, PassTimes, Results, Spoken
from taslak.control.theory import predicted_speedup
from taslak.core.counts import Counts

BASE = Setting(max_tokens=11)


def made(
    way: Way,
    prompt: str,
    seconds: float,
    *,
    task: str = "t",
    round: int = 0,
    series: int = 0,
    setting: Setting = BASE,
    counts: Counts | None = None,
    identical: bool = True,
    draft: float = 0.0,
) -> Measurement:
    """Eleven tokens, the first of them after a second."""
    turns = (Spoken("text", 11, seconds, (1, 10)),)
    difference = None if identical else {"near_tie": False, "turn": 0, "position": 3}
    answer = Answered(prompt, task, 5, ((7,) * 11,), turns, identical, difference)
    counts = counts or Counts(passes=11, bonuses=11)
    return Measurement(way, setting, series, round, seconds, 1.0, draft, 1.0, 0.0, counts, (answer,))


def figures(*measurements: Measurement, passes: PassTimes | None = None) -> Figures:
    return Figures(Results({"model": "m"}, measurements, passes))


SUFFIX = Way("suffix", 2)


def test_medians_over_rounds_sums_over_prompts() -> None:
    found = figures(
        *(made(PLAINLY, "a", seconds, round=i) for i, seconds in enumerate((4.0, 9.0, 5.0))),
        *(made(SUFFIX, "a", seconds, round=i) for i, seconds in enumerate((2.0, 2.5, 99.0))),
        made(PLAINLY, "b", 3.0),
        made(SUFFIX, "b", 6.0),
    )
    by_prompt = {case.prompts: case.speedup for case in found.main}
    assert by_prompt == {("a",): pytest.approx(5.0 / 2.5), ("b",): pytest.approx(0.5)}
    assert speedup(found.main) == pytest.approx((5.0 + 3.0) / (2.5 + 6.0))
    assert speedup(found.main, after=True) == pytest.approx((4.0 + 2.0) / (1.5 + 5.0))
    assert [case.prompts for case in found.losses()] == [("b",)]


def test_plain_decoding_of_the_same_turns_is_what_counts() -> None:
    slow = Setting(max_tokens=11, temperature=0.8)
    found = figures(
        made(PLAINLY, "a", 4.0),
        made(SUFFIX, "a", 2.0),
        made(PLAINLY, "a", 8.0, series=1, setting=slow),
        made(SUFFIX, "a", 2.0, series=1, setting=slow),
    )
    along = found.along("suffix", lambda setting: setting.temperature)
    assert {value: speedup(cases) for value, cases in along.items()} == {0.0: 2.0, 0.8: 4.0}
    assert found.along("suffix", lambda setting: setting.batch) == {}


def test_curves_are_over_prompts_that_every_point_has() -> None:
    found = figures(
        made(PLAINLY, "a", 4.0),
        made(SUFFIX, "a", 2.0),
        made(PLAINLY, "b", 4.0),
        made(SUFFIX, "b", 40.0),
        made(PLAINLY, "a", 4.0, series=1),
        made(Way("suffix", 4), "a", 1.0, series=1),
    )
    assert {gamma: speedup(cases) for gamma, cases in found.by_gamma("suffix").items()} == {2: 2.0, 4: 4.0}


def test_a_prediction_is_made_of_the_runs_own_figures() -> None:
    counts = Counts(
        passes=10, drafted=30, nodes=30, accepted=12, bonuses=10, offered_at=[8, 4], accepted_at=[8, 4]
    )
    found = figures(
        made(PLAINLY, "a", 4.0),
        made(SUFFIX, "a", 2.0, counts=counts, draft=5.0),
        passes=PassTimes(64, (1, 2, 3), (1.0, 1.5, 2.5)),
    )
    assert reach(counts) == [0.8, 0.5]
    times = {1: 1.0, 2: 1.5, 3: 2.5}
    expected = predicted_speedup([1.0, 1.0], 2, lambda r: times[int(r)], lambda _: 0.5, reach=[0.8, 0.5])
    assert found.predicted("suffix", [2]) == [pytest.approx(expected)]
    assert figures(made(PLAINLY, "a", 4.0), made(SUFFIX, "a", 2.0)).predicted("suffix", [2]) == []


def test_texts_are_counted_over_all_cells() -> None:
    found = figures(
        made(PLAINLY, "a", 4.0),
        made(SUFFIX, "a", 2.0),
        made(SUFFIX, "a", 2.0, round=1, identical=False),
        made(PLAINLY, "a", 4.0, series=1),
        made(Way("suffix", 4), "a", 1.0, series=1),
    )
    assert found.identical("suffix") == (2, 3, 1)
    assert found.main[0].identical == (False,)
