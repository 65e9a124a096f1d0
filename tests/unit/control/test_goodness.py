"""The chi-squared test against scipy's, and what it says it would have noticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from taslak.control import goodness
from taslak.control.goodness import POWER, _power, _upper_tail, goodness_of_fit

LAW = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.049, "e": 0.001}


@given(statistic=st.floats(0.0, 300.0), freedom=st.integers(1, 100))
def test_tail_of_chi_squared(statistic: float, freedom: int) -> None:
    assert _upper_tail(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-7)


@given(effect=st.floats(0.0, 200.0), critical=st.floats(1.0, 150.0), freedom=st.integers(1, 60))
def test_power(effect: float, critical: float, freedom: int) -> None:
    expected = stats.ncx2.sf(critical, freedom, effect) if effect else stats.chi2.sf(critical, freedom)
    assert _power(effect, critical, freedom) == pytest.approx(expected, abs=1e-7)


def test_counts_of_the_distribution_fit_and_others_do_not() -> None:
    draw = random.Random(1)
    right = draw.choices(list(LAW), list(LAW.values()), k=2000)
    fit = goodness_of_fit({x: right.count(x) for x in set(right)}, LAW, 1e-4)
    assert fit.p_value > 1e-3
    assert fit.cells == 4, "the rarest expects two"
    moved = ["b" if x == "a" and draw.random() < 0.25 else x for x in right]
    assert goodness_of_fit({x: moved.count(x) for x in set(moved)}, LAW, 1e-4).p_value < 1e-5


def test_what_can_not_be_is_told_however_rare() -> None:
    assert goodness_of_fit({"a": 10_000, "f": 1}, {"a": 1.0}, 1e-4).p_value == 0.0
    assert goodness_of_fit({"a": 10}, {"a": 1.0}, 1e-4).p_value == 1.0


def test_the_shift_it_would_notice_is_noticed_that_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodness, "ROUNDS", 1)  # a p-value of 1e-2 needs no more
    monkeypatch.setattr(goodness, "EACH", 2000)
    law = {"a": 0.5, "b": 0.3, "c": 0.2}
    noticed = goodness_of_fit({"a": 300, "b": 180, "c": 120}, law, 1e-2).noticed
    assert noticed is not None
    assert 0.05 < noticed < 0.2
    draw = random.Random(2)
    shifted = [law["a"] - noticed, law["b"] + noticed, law["c"]]
    caught = 0
    for _ in range(400):
        sample = draw.choices("abc", shifted, k=600)
        caught += goodness_of_fit({x: sample.count(x) for x in "abc"}, law, 1e-2).p_value < 1e-2
    assert caught / 400 == pytest.approx(POWER, abs=0.05)


def test_too_many_of_what_is_rare_are_noticed() -> None:
    """However few they are expected to be: a faulty remainder gives just these."""
    assert goodness_of_fit({"b": 400}, {"a": 0.998, "b": 0.002}, 1e-4).p_value < 1e-9
    law = {"a": 0.5, "b": 0.4985, "c": 0.0015}
    assert goodness_of_fit({"a": 180, "b": 180, "c": 40}, law, 1e-4).p_value < 1e-9
    assert goodness_of_fit({"a": 205, "b": 194, "c": 1}, law, 1e-4).p_value > 0.1


@pytest.mark.parametrize("rare", [0.0025, 0.005, 0.0125])
def test_alarms_are_false_as_rarely_as_is_said(rare: float) -> None:
    """Also where a cell expects so few that its count is far from normal."""
    samples, significance = 400, 0.002
    law = {"a": 1.0 - rare, "b": rare}
    alarms = 0.0
    for n in range(60):
        chance = float(stats.binom.pmf(n, samples, rare))
        if chance > 1e-7:
            p = goodness_of_fit({"a": samples - n, **({"b": n} if n else {})}, law, significance).p_value
            alarms += chance * (p < significance)
    assert alarms <= 1.05 * significance


def test_where_nothing_could_be_noticed_nothing_is_said() -> None:
    flat = dict.fromkeys(range(64), 1 / 64)
    assert goodness_of_fit(dict.fromkeys(range(50), 1), flat, 1e-4).noticed is None
    assert goodness_of_fit({"a": 10}, {"a": 1.0}, 1e-4).noticed is None
