"""What a request learns of its drafts: from nothing to what is true, and on when that changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.control.estimate import DEEPEST, MEMORY, Estimate, Prior, drawn, hot, start
from taslak.core.draft import Draft


def draft(depth: int, confidence: float | None = None) -> Draft:
    return Draft.chain([*range(depth)], confidence=None if confidence is None else [confidence] * depth)


def test_at_first_it_is_what_was_thought_before() -> None:
    fresh = Estimate(Prior((0.8, 0.6), (1.0, 0.5)))
    assert fresh.yields(4) == pytest.approx([0.8, 0.6, 0.6, 0.6])
    assert fresh.reach(3) == pytest.approx([1.0, 0.5, 0.5])
    assert fresh.trust == 1.0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 0.95), min_size=4, max_size=4), st.integers(0, 2**32))
def test_it_comes_to_what_is_true(hazards: list[float], seed: int) -> None:
    """Within what a memory of MEMORY drafts can tell."""
    found = Estimate(Prior((0.5,)))
    rng = random.Random(seed)
    sums = [0.0] * 4
    for number in range(1200):
        accepted = 0
        while accepted < 4 and rng.random() < hazards[accepted]:
            accepted += 1
        found.record(draft(4), 4, accepted, censored=False)
        if number >= 200:
            sums = [s + y for s, y in zip(sums, found.yields(4), strict=True)]
    means = [s / 1000 for s in sums]
    ahead = 1.0
    for mean, hazard in zip(means, hazards, strict=True):
        if MEMORY * ahead > 2:  # a depth that is hardly ever reached stays near the prior
            assert mean == pytest.approx(hazard, abs=0.2)
        ahead *= hazard


def test_a_change_is_noticed_within_a_memory() -> None:
    found = Estimate(Prior((0.5,)))
    for _ in range(200):
        found.record(draft(3), 3, 3, censored=False)
    assert found.yields(1)[0] > 0.9
    for _ in range(MEMORY):
        found.record(draft(3), 3, 0, censored=False)
    assert found.yields(1)[0] < 0.45


def test_a_request_that_is_bad_at_one_depth_is_thought_bad_at_the_next() -> None:
    found = Estimate(Prior((0.8, 0.8, 0.8)))
    for _ in range(50):
        found.record(draft(1), 1, 0, censored=False)
    assert max(found.yields(3)) < 0.2


def test_what_was_never_judged_counts_for_nothing() -> None:
    found = Estimate(Prior((0.5,)))
    for _ in range(50):
        found.record(draft(4), 4, 2, censored=True)  # the answer ended with the second token
    yields = found.yields(3)
    assert yields[1] > 0.9
    assert yields[2] > 0.9, "no draft was ever seen wrong there"


def test_an_early_end_is_no_acceptance_and_no_reach() -> None:
    found = Estimate(Prior((0.9,), (1.0,)))
    for _ in range(100):
        found.record(draft(1), 4, 1, censored=False)
    assert found.yields(2)[0] > 0.9
    assert found.yields(2)[1] < 0.1
    assert found.reach(2)[1] < 0.1


def test_trust_is_how_far_confidence_can_be_believed() -> None:
    found = Estimate()
    for number in range(400):
        found.record(draft(2, confidence=0.8), 2, 2 if number % 5 < 2 else 0, censored=False)
    assert found.trust == pytest.approx(0.5, abs=0.12), "0.8 accepted where 1.6 were expected"
    for _ in range(5):
        found.record(draft(2, confidence=0.8), 2, 0, censored=True)
    assert found.trust == pytest.approx(0.5, abs=0.12), "what was cut off says nothing"
    assert found.size == pytest.approx(2.0, abs=0.01)


def test_time_that_passes_makes_it_less_sure() -> None:
    found = Estimate(Prior((0.5,)))
    for _ in range(100):
        found.record(draft(1), 1, 0, censored=False)
    low = found.yields(1)[0]
    for _ in range(20 * MEMORY):
        found.fade()
    assert low < 0.1
    assert found.yields(1)[0] == pytest.approx(0.5, abs=0.01)


def test_what_never_succeeds_is_given_up_sooner_than_its_mean_falls() -> None:
    """Twelve failures against a prior of 0.6 that counts for ten drafts; a single success keeps it."""
    found = Estimate(Prior((0.6,)))
    for _ in range(12):
        found.record(draft(1), 1, 0, censored=False)
    low = found.yields(1)[0]
    assert low < 0.1
    found.record(draft(1), 1, 1, censored=False)
    assert found.yields(1)[0] > 1.5 * low
    some = Estimate(Prior((0.45,)))
    for number in range(8):
        some.record(draft(1), 1, int(number == 2), censored=False)
    assert some.yields(1)[0] == pytest.approx((0.45 * 10 + 1) / 18, abs=0.05)


def test_it_never_overflows() -> None:
    found = Estimate(Prior((0.5,)))
    for number in range(3000):
        found.record(draft(DEEPEST + 3), DEEPEST + 3, number % (DEEPEST + 4), censored=False)
        found.fade()
    assert all(0.0 <= each <= 1.0 for each in found.yields(DEEPEST + 3))


def test_what_a_request_starts_from_follows_its_temperature() -> None:
    priors = {
        "x": Prior((0.6, 0.5)),
        drawn("x"): Prior((0.4,), (0.8,), 1.0),
        hot("x"): Prior((0.2, 0.1), (0.6,), 0.5),
    }
    assert start(priors, "x", 0.0) is priors["x"]
    assert start(priors, "x", 0.5) is priors[drawn("x")]
    assert start(priors, "x", 0.8) is priors[drawn("x")]
    between = start(priors, "x", 1.0)
    assert between.yields == pytest.approx([0.3, 0.25])
    assert between.reach == pytest.approx([0.7])
    assert between.trust == pytest.approx(0.75)
    assert start(priors, "x", 3.0).yields == pytest.approx([0.2, 0.1])
    assert start({"x": Prior((0.6,))}, "x", 1.2).yields == (0.6,)
    assert start({}, "x", 1.2) == Prior()
