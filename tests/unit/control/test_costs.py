"""Costs: read off a staircase, kept and read back, corrected by what steps take, never by one hiccup."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taslak.control.costs import Costs, DraftCost, PassCost, RestCost, mode_of
from taslak.core.sampling import Sampling


def costs() -> Costs:
    return Costs(
        PassCost([1, 4, 5, 9], [1.0, 1.0, 2.0, 2.4], context=0.001, attended=0.0001),
        {"eagle": DraftCost(0.1, 0.05, lag=0.01), "early-exit": DraftCost(0.5, 0.5, left=0.5)},
        {"greedy": RestCost(0.1, 0.15)},
    )


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 1.0), (3, 1.0), (4, 1.0), (4.5, 1.5), (5, 2.0), (7, 2.2), (9, 2.4), (13, 2.8)]
)
def test_between_what_was_measured_it_is_interpolated_and_past_it_goes_on(
    rows: float, seconds: float
) -> None:
    assert costs().pass_(rows) == pytest.approx(seconds)


def test_context_is_paid_once_a_sequence_and_once_a_row() -> None:
    assert costs().pass_(5, 100) == pytest.approx(2.0 + 0.1 + 0.05)
    assert costs().pass_(5, 100, attended=300) == pytest.approx(2.0 + 0.1 + 0.03)


def test_one_width_is_a_flat_line() -> None:
    assert PassCost([1], [2.0])(7) == 2.0


def test_what_was_not_measured_costs_nothing_or_as_much_as_its_like() -> None:
    known = costs()
    assert known.draft("ngram", 5) == known.catch_up("ngram", 5) == 0.0
    assert known.rest_of("sampled", True) == 0.15
    assert Costs(PassCost([1], [1.0])).rest_of("greedy", False) == 0.0


def test_drafting_with_the_targets_layers_leaves_less_of_the_pass() -> None:
    known = costs()
    assert known.left([None, "eagle"]) == 1.0
    assert known.left(["early-exit"]) == 0.5
    assert known.left(["early-exit", None]) == 0.75


def test_break_even_is_what_makes_a_step_no_dearer_than_plain() -> None:
    known = costs()
    # plain 1.1 s; drafted 2.0 + 0.1 + 4 · 0.05 + 0.15 = 2.45 s
    assert known.break_even("eagle", 4, "greedy") == pytest.approx(2.45 / 1.1 - 1)
    free = Costs(PassCost([1, 9], [1.0, 1.0]))
    assert free.break_even("ngram", 4, "greedy") == 0.0


@given(st.floats(0.3, 3.0))
def test_a_machine_that_slows_down_is_noticed_in_all_figures(slower: float) -> None:
    known = costs()
    for _ in range(300):
        expected = known.pass_(4)
        known.saw_pass(4, expected, slower)
    assert known.pass_(4) == pytest.approx(slower, rel=0.02)
    assert known.pass_(9) / known.pass_(1) == pytest.approx(2.4, rel=0.5)
    assert known.draft("eagle", 2) == pytest.approx(0.2 * known.scale)


def test_one_hiccup_is_no_news() -> None:
    known = costs()
    known.saw_pass(4, known.pass_(4), 1000.0)
    known.saw_draft("eagle", 2, 1000.0)
    known.saw_rest("greedy", True, 1000.0)
    assert known.pass_(4) < 1.03
    assert known.draft("eagle", 2) < 0.2 * 1.04
    assert known.rest_of("greedy", True) < 0.15 * 1.05
    before = known.as_json()
    known.saw_pass(4, 0.0, 1.0)
    assert known.as_json() == before


def test_a_drafter_and_the_rest_are_corrected_by_themselves() -> None:
    known = costs()
    for _ in range(600):
        known.saw_draft("eagle", 4, 0.6)
        known.saw_rest("greedy", False, 0.2)
        known.saw_rest("sampled", True, 0.3)
    known.saw_draft("unknown", 1, 1.0)
    assert known.draft("eagle", 4) == pytest.approx(0.6, rel=0.01)
    assert known.draft("eagle", 0) == pytest.approx(0.2, rel=0.01), "in proportion"
    assert known.rest_of("greedy", False) == pytest.approx(0.2, rel=0.01)
    assert known.rest_of("greedy", True) == 0.15
    assert known.rest_of("sampled", True) == pytest.approx(0.3, rel=0.01)
    assert known.rest_of("sampled", False) == pytest.approx(0.2, rel=0.1), "as greedy ones were"


def test_they_are_kept_and_read_back() -> None:
    known = costs()
    known.scale = 1.7
    again = Costs.from_json(known.as_json())
    assert again.scale == 1.0, "how slow the machine was then says nothing about now"
    again.scale = 1.7
    assert again == known


@pytest.mark.parametrize(
    "damage",
    [
        {"passing": {"rows": [], "seconds": []}},
        {"passing": {"rows": [1], "seconds": [math.nan]}},
        {"passing": {"rows": [1, 2], "seconds": [1.0]}},
        {"passing": {"rows": [1], "seconds": [-1.0]}},
        {"passing": {"lines": [1]}},
        {"rest": {"greedy": {"plain": 1.0}}},
    ],
    ids=str,
)
def test_damaged_figures_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Costs.from_json({**costs().as_json(), **damage})


def test_modes() -> None:
    assert mode_of(Sampling(), "coupled") == "greedy"
    assert mode_of(Sampling(temperature=0.8), "coupled") == "sampled"
    assert mode_of(Sampling(temperature=0.8), "rejection") == "sampled, rejection"
    assert mode_of(Sampling(temperature=0.8, top_p=0.9), "coupled") == "sampled, cut"
    assert mode_of(Sampling(top_p=0.9, presence_penalty=1.0), "coupled") == "greedy, penalised"


def test_a_mode_never_seen_is_guessed_from_the_first() -> None:
    drafted = Costs(PassCost([1], [1.0]), rest={"greedy": RestCost(0.1, 0.2)})
    drafted.saw_rest("sampled", False, 0.3)
    assert drafted.rest["sampled"] == RestCost(0.3, pytest.approx(0.6))  # type: ignore[arg-type]
    bare = Costs(PassCost([1], [1.0]), rest={"greedy": RestCost(0.0, 0.0)})
    bare.saw_rest("sampled", True, 0.3)
    assert bare.rest["sampled"] == RestCost(0.3, 0.3)


def test_what_is_left_of_a_pass_is_corrected_and_the_machine_is_not_blamed() -> None:
    known = costs()
    for _ in range(400):
        expected = known.left(["early-exit"]) * known.pass_(4)
        known.saw_part("early-exit", expected, 0.8)
    assert known.left(["early-exit"]) == pytest.approx(0.8, rel=0.01)
    assert known.pass_(4) == 1.0
    known.saw_part("unknown", 1.0, 2.0)


def test_a_batch_has_its_own_price() -> None:
    known = costs()
    for _ in range(200):
        known.saw_draft("eagle", 2, 0.6, count=5)
    assert known.draft("eagle", 2, count=8) == pytest.approx(0.6, rel=0.01), "of five to eight together"
    assert known.draft("eagle", 2) == pytest.approx(0.2)
    assert known.draft("eagle", 2, count=2) == pytest.approx(0.2)


def test_rows_of_a_prompt_want_no_logits_and_a_pass_is_never_less_than_one_row() -> None:
    passing = PassCost([1, 9, 65], [1.0, 1.4, 7.0], spared=0.05)
    assert passing(65, prompt=64) == pytest.approx(7.0 - 3.2)
    assert passing(9, prompt=8) == 1.0
    assert passing(9) == 1.4
    known = Costs(passing, scale=2.0)
    assert known.pass_(66, prompt=60) == pytest.approx(2 * (7.1 - 3.0)), "past the end it goes on"


def test_what_wide_passes_take_is_learnt_from_them_and_the_machine_is_not_blamed() -> None:
    known = Costs(PassCost([1, 9, 65], [1.0, 1.4, 7.0], beyond=0.1))
    for _ in range(300):
        expected = known.pass_(501, prompt=500)
        known.saw_pass(501, expected, 7.0 + 436 * 0.25, 500)
    assert known.passing.beyond == pytest.approx(0.25, rel=0.01)
    assert known.scale == 1.0
    assert known.pass_(65) == 7.0
    for _ in range(50):  # short prompts: what is known of them is rough
        known.saw_pass(20, known.pass_(20, prompt=19), 100.0, 19)
    assert known.scale == 1.0
    known.saw_pass(501, known.pass_(501), 1.0)
    assert known.passing.beyond > 0.2, "quicker than what isn't past the end: one hiccup"


def test_what_early_exit_saves_it_saves_of_its_own_rows() -> None:
    assert costs().left(["early-exit"], rows=10) == pytest.approx(0.95)
    assert costs().left(["early-exit", "early-exit"], rows=2) == 0.5


def test_each_row_that_is_visited_is_drawn_from() -> None:
    known = Costs(PassCost([1], [1.0]), rest={"greedy": RestCost(0.1, 0.15, 0.02)}, scale=2.0)
    assert known.rest_of("greedy", False) == pytest.approx(0.2)
    assert known.rest_of("greedy", True, visited=5) == pytest.approx(2 * (0.15 + 4 * 0.02))
    assert known.draw_of("greedy") == known.draw_of("sampled") == pytest.approx(0.04)
    assert Costs(PassCost([1], [1.0])).draw_of("greedy") == 0.0


@pytest.mark.parametrize("row", [0.008, 0.1])
def test_the_draws_are_told_apart_from_the_step_by_how_many_there_are(row: float) -> None:
    known = Costs(PassCost([1], [1.0]), rest={"greedy": RestCost(0.1, 0.15, 0.02)})
    for number in range(6000):
        visited = 1 + number % 6
        known.saw_rest("greedy", True, 0.2 + row * (visited - 1), visited)
    assert known.rest["greedy"].row == pytest.approx(row, abs=0.002)
    for visited in range(1, 7):
        assert known.rest_of("greedy", True, visited) == pytest.approx(0.2 + row * (visited - 1), rel=0.03)
    assert known.rest["greedy"].plain == 0.1
    known.saw_rest("sampled", True, 0.4 + 10 * row, 6)
    assert known.rest["sampled"].row == pytest.approx(2 * row, rel=0.5), "as greedy ones, twice as dear"


def test_a_drafted_token_that_is_accepted_is_drawn_as_a_plain_one_is() -> None:
    """A step of four right ones, at the break-even, takes as long as four plain steps and one."""
    known = costs()
    known.rest["greedy"] = RestCost(0.1, 0.15, 0.05)
    even = known.break_even("eagle", 4, "greedy")
    drafted = known.pass_(5) + known.draft("eagle", 4) + known.rest_of("greedy", True, 1 + even)
    assert drafted == pytest.approx((1 + even) * (known.pass_(1) + 0.1))
