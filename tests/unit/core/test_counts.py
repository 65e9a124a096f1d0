"""Counts against hand-made cases and against a brute-force count of the same passes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taslak.core.counts import Counts
from taslak.core.draft import EMPTY, ROOT, Draft

from .test_draft import trees

CHAIN = Draft.chain([1, 2, 3, 4])
#        1 ── 3, 4
#  root
#        2 ── 5 ── 6
TREE = Draft((1, 2, 3, 4, 5, 6), (-1, -1, 0, 0, 1, 4))


@dataclass(frozen=True)
class Pass:
    draft: Draft
    path: tuple[int, ...]
    bonus: bool


@st.composite
def any_pass(draw: st.DrawFn) -> Pass:
    draft = draw(trees())
    node, path = ROOT, []
    while (children := draft.children(node)) and draw(st.booleans()):
        node = draw(st.sampled_from(children))
        path.append(node)
    return Pass(draft, tuple(path), draw(st.booleans()) if path else True)


def count(*passes: Pass) -> Counts:
    counts = Counts()
    for one in passes:
        counts.record(one.draft, one.path, one.bonus)
    return counts


def test_c30_nothing_drafted_has_no_rate() -> None:
    counts = count(*[Pass(EMPTY, (), True)] * 3)
    assert (counts.acceptance_rate, counts.node_rate, counts.hazards) == (None, None, [])
    assert (counts.alpha, counts.tau, counts.theoretical_speedup) == (0.0, 1.0, 1.0)
    assert (counts.passes, counts.emitted, counts.bonuses) == (3, 3, 3)


def test_c30_nothing_at_all_has_no_figures() -> None:
    counts = Counts()
    figures = (counts.acceptance_rate, counts.node_rate, counts.alpha, counts.tau, counts.theoretical_speedup)
    assert figures == (None,) * 5
    assert counts.emitted == 0


def test_c30_all_accepted() -> None:
    counts = count(Pass(CHAIN, (0, 1, 2, 3), True))
    assert (counts.drafted, counts.nodes, counts.accepted, counts.bonuses, counts.emitted) == (4, 4, 4, 1, 5)
    assert (counts.acceptance_rate, counts.node_rate) == (1.0, 1.0)
    assert (counts.alpha, counts.tau, counts.theoretical_speedup) == (4.0, 5.0, 5.0)
    assert counts.hazards == [1.0] * 4


def test_c30_all_rejected() -> None:
    counts = count(Pass(CHAIN, (), True))
    assert (counts.drafted, counts.nodes, counts.accepted, counts.emitted) == (4, 4, 0, 1)
    assert (counts.acceptance_rate, counts.node_rate, counts.alpha) == (0.0, 0.0, 0.0)
    assert counts.hazards == [0.0]  # what lies below a rejected node was never on offer


def test_c30_nodes_after_a_stop_are_neither_accepted_nor_rejected() -> None:
    stopped = count(Pass(CHAIN, (0, 1), False))
    assert (stopped.drafted, stopped.nodes, stopped.accepted, stopped.bonuses) == (2, 2, 2, 0)
    assert (stopped.acceptance_rate, stopped.emitted, stopped.passes) == (1.0, 2, 1)
    assert stopped.hazards == [1.0, 1.0]
    rejected = count(Pass(CHAIN, (0, 1), True))
    assert (rejected.drafted, rejected.acceptance_rate, rejected.hazards) == (4, 0.5, [1.0, 1.0, 0.0])


def test_c30_a_stop_in_a_tree_leaves_the_siblings_judged() -> None:
    counts = count(Pass(TREE, (1,), False))
    assert (counts.drafted, counts.nodes, counts.accepted) == (1, 2, 1)


def test_trees_count_depth_and_nodes_apart() -> None:
    counts = count(Pass(TREE, (0, 3), True))
    assert (counts.drafted, counts.nodes, counts.accepted) == (3, 6, 2)
    assert counts.acceptance_rate == pytest.approx(2 / 3)
    assert counts.node_rate == pytest.approx(2 / 6)
    assert counts.hazards == [1.0, 1.0]  # below node 3 nothing was drafted, so depth 3 was not on offer


def test_hazards_are_not_the_acceptance_rate() -> None:
    counts = count(Pass(CHAIN, (0,), True), Pass(CHAIN, (), True), Pass(CHAIN, (0, 1, 2, 3), True))
    assert counts.hazards == [2 / 3, 1 / 2, 1.0, 1.0]
    assert counts.acceptance_rate == pytest.approx(5 / 12)


@given(st.lists(any_pass(), max_size=12))
def test_c30_invariants(passes: list[Pass]) -> None:
    counts = count(*passes)
    assert counts.emitted == counts.accepted + counts.bonuses
    assert counts.bonuses <= counts.passes == len(passes)
    assert counts.accepted <= counts.drafted <= counts.nodes
    assert (counts.acceptance_rate is None) == (counts.drafted == 0)
    assert (counts.node_rate is None) == (counts.nodes == 0)
    for rate in (counts.acceptance_rate, counts.node_rate, *counts.hazards):
        assert rate is None or 0.0 <= rate <= 1.0
    if passes:
        assert counts.tau == pytest.approx(counts.alpha + counts.bonuses / counts.passes)


@given(st.lists(any_pass(), max_size=12))
def test_hazards_equal_a_brute_force_count(passes: list[Pass]) -> None:
    hazards = []
    for depth in range(1, 13):
        offered = accepted = 0
        for one in passes:
            reached = len(one.path) >= depth - 1
            last = ([ROOT, *one.path])[depth - 1] if reached else None
            judged = len(one.path) >= depth or one.bonus  # a stop before this depth censors it
            if reached and judged and last in one.draft.parents:
                offered += 1
                accepted += len(one.path) >= depth
        if offered:
            hazards.append(accepted / offered)
    assert count(*passes).hazards == pytest.approx(hazards)


@given(st.lists(any_pass(), max_size=8), st.lists(any_pass(), max_size=8))
def test_c30_adding_equals_recording_everything_in_one(first: list[Pass], second: list[Pass]) -> None:
    both = count(*first)
    other = count(*second)
    before = count(*second)
    both.add(other)
    assert both == count(*first, *second)
    assert other == before
