"""The formulas against numbers worked out by hand, and against drafts thrown like dice."""

from __future__ import annotations

import random

import pytest

from taslak.control.theory import best_gamma, expected_tau, predicted_speedup


def test_tau_by_hand() -> None:
    assert expected_tau([0.8, 0.5], 2) == pytest.approx(1 + 0.8 + 0.4)
    assert expected_tau([0.8, 0.5], 3) == pytest.approx(1 + 0.8 + 0.4 + 0.2)  # the last one goes on
    assert expected_tau([0.8, 0.5], 2, reach=[0.5]) == pytest.approx(1 + 0.4 + 0.1)
    assert expected_tau([], 4) == 1.0
    assert expected_tau([1.0], 4) == 5.0


def test_a_constant_hazard_gives_the_geometric_series() -> None:
    assert expected_tau([0.7], 5) == pytest.approx((1 - 0.7**6) / (1 - 0.7))


def test_tau_is_what_drafts_come_to() -> None:
    hazards, reach, gamma = [0.9, 0.6, 0.4], [0.8, 1.0, 0.7], 3
    generator, emitted, passes = random.Random(0), 0, 40_000
    for _ in range(passes):
        depth = 0
        while depth < gamma and generator.random() < reach[depth] and generator.random() < hazards[depth]:
            depth += 1
        emitted += depth + 1
    assert emitted / passes == pytest.approx(expected_tau(hazards, gamma, reach), rel=0.01)


def test_speedup_by_hand() -> None:
    def passing(rows: float) -> float:
        return 10.0 + rows

    def draft(levels: float) -> float:
        return 2.0 * levels

    tau = 1 + 0.5 + 0.25
    assert predicted_speedup([0.5], 2, passing, draft) == pytest.approx(tau * 11 / (13 + 4))
    assert predicted_speedup([0.5], 2, passing, draft, other=1.0) == pytest.approx(tau * 12 / 18)
    drawn = predicted_speedup([0.5], 2, passing, draft, other=1.0, draw=2.0)
    assert drawn == pytest.approx(tau * 14 / (18 + 2 * tau))
    sparse = 1 + 0.25 * 0.5 + 0.25 * 0.5 * 0.25 * 0.5
    step = 0.25 * 13 + 0.75 * 11 + 4
    assert predicted_speedup([0.5], 2, passing, draft, reach=[0.25]) == pytest.approx(sparse * 11 / step)


def test_free_drafts_in_free_rows_give_tau_itself() -> None:
    assert predicted_speedup([0.6], 4, lambda _: 1.0, lambda _: 0.0) == pytest.approx(expected_tau([0.6], 4))


def test_the_best_depth_may_be_none_at_all() -> None:
    assert best_gamma([0.9, 1.2, 1.1]) == 2
    assert best_gamma([0.9, 0.8]) == 0
    assert best_gamma([]) == 0
