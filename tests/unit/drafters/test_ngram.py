"""Prompt lookup against a reference that reads the whole text every time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taslak.core.sampling import Sampling
from taslak.drafters.base import NOTHING, Budget, DrafterOptions, Report, View, build
from taslak.drafters.ngram import NEVER, Context, Ngram, NgramIndex

VOCAB = 100
texts = st.lists(st.integers(0, 3), max_size=40)


def view(tokens: list[int]) -> View:
    return View(tokens=tokens, prompt_length=1, sampling=Sampling(), key=0)


def propose(drafter: Ngram, shown: View, depth: int = 5) -> list[int]:
    draft = drafter.propose([shown], [Budget(depth, depth)])[0]
    assert draft.q is None
    assert draft.parents == tuple(range(-1, len(draft) - 1))
    return list(draft.tokens)


def reference(tokens: list[int], depth: int, longest: int = 8, shortest: int = 1) -> list[int]:
    """The definition: longest suffix first, latest earlier occurrence first, the copy running into itself."""
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                for i in range(depth):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


def changed(tokens: list[int], cut: int, more: list[int]) -> list[int]:
    return tokens[: cut % (len(tokens) + 1)] + more


edits = st.lists(st.tuples(st.integers(0, 200), texts, st.booleans()), max_size=6)


@given(start=texts, edits=edits, depth=st.integers(1, 12), lengths=st.sampled_from([(8, 1), (3, 1), (4, 2)]))
def test_equals_the_reference_through_crops_and_jumps(start, edits, depth, lengths):
    longest, shortest = lengths
    drafter = Ngram(VOCAB, longest, shortest)
    shown = view(start)
    assert propose(drafter, shown, depth) == reference(start, depth, longest, shortest)
    for cut, more, in_place in edits:
        tokens = changed(shown.tokens, cut, more)
        if in_place:
            shown.tokens[:] = tokens
        else:
            shown.tokens = tokens
        assert propose(drafter, shown, depth) == reference(tokens, depth, longest, shortest)


@given(start=texts, edits=edits)
def test_the_index_remembers_the_text_and_nothing_else(start, edits):
    index = NgramIndex(longest=8, shortest=1)
    index.follow(start)
    tokens = start
    for cut, more, _ in edits:
        tokens = changed(tokens, cut, more)
        index.follow(tokens)
    fresh = NgramIndex(longest=8, shortest=1)
    fresh.follow(tokens)
    assert (index.context.tokens, index.last, index.earlier) == (tokens, fresh.last, fresh.earlier)


def test_the_longest_suffix_wins_over_a_later_shorter_one():
    assert propose(Ngram(VOCAB), view([1, 2, 3, 9, 3, 8, 1, 2, 3]), depth=1) == [9]


def test_the_latest_of_equal_matches_wins():
    assert propose(Ngram(VOCAB), view([1, 2, 7, 1, 2, 8, 1, 2]), depth=1) == [8]


def test_a_suffix_does_not_match_itself():
    assert propose(Ngram(VOCAB), view([1, 2, 3])) == []
    assert NgramIndex(8, 1).match() == NEVER


def test_shorter_suffixes_than_the_shortest_are_not_looked_up():
    assert propose(Ngram(VOCAB, longest=8, shortest=2), view([1, 5, 2, 1])) == []


@pytest.mark.parametrize(("period", "depth"), [(1, 7), (3, 8), (5, 16)])
def test_periodic_text_is_continued(period, depth):
    text = [i % period for i in range(4 * period)]
    expected = [i % period for i in range(4 * period, 4 * period + depth)]
    assert propose(Ngram(VOCAB), view(text), depth) == expected


@pytest.mark.parametrize("tokens", [[], [4]])
def test_nothing_to_look_up(tokens):
    assert propose(Ngram(VOCAB), view(tokens)) == []


@pytest.mark.parametrize("budget", [NOTHING, Budget(0, 5), Budget(5, 0), Budget(2, 9), Budget(9, 2)])
def test_c03_the_draft_keeps_to_its_budget(budget):
    draft = Ngram(VOCAB).propose([view([1, 1, 1, 1])], [budget])[0]
    assert len(draft) == min(budget.depth, budget.nodes)


def test_c20_the_draft_ends_before_an_id_outside_the_vocabulary():
    assert propose(Ngram(VOCAB), view([1, 2, VOCAB, 3, 1])) == [2]
    assert propose(Ngram(VOCAB), view([1, -5, 3, 1])) == []


def test_c24_c25_views_of_one_drafter_do_not_mix():
    drafter = Ngram(VOCAB)
    texts = [[1], [1, 2, 1], list(range(20)), [5] * 7]
    views = [view(list(text)) for text in texts]
    budgets = [Budget(d, d) for d in (5, 1, 3, 4)]
    for _ in range(3):
        drafts = drafter.propose(views, budgets)
        for shown, budget, draft in zip(views, budgets, drafts, strict=True):
            assert list(draft.tokens) == reference(shown.tokens, budget.depth)
            shown.tokens.extend([1, 2])


def test_c37_right_at_once_after_sitting_out():
    drafter = Ngram(VOCAB)
    shown = view([1, 2, 3])
    propose(drafter, shown)
    shown.tokens.extend([7, 8, 9, 1, 2])
    assert drafter.lag(shown) == 5
    drafter.observe([shown], [Report(3, [3, 7, 8, 9, 1])])
    assert propose(drafter, shown, depth=3) == [3, 7, 8]
    assert drafter.lag(shown) == 0


def test_forget_frees_the_index_twice():
    drafter = Ngram(VOCAB)
    shown = view([1, 1])
    propose(drafter, shown)
    drafter.forget(shown)
    drafter.forget(shown)
    assert shown.state is None
    assert drafter.lag(shown) == 2


@given(
    first=st.lists(st.integers(0, 1), max_size=10),
    second=st.lists(st.integers(0, 1), max_size=10),
    common=st.sampled_from([0, 1, 63, 64, 65, 1023, 1024, 1025, 2100]),
    same_list=st.booleans(),
)
def test_the_common_prefix_of_long_texts(first, second, common, same_list):
    context = Context()
    shown = [5] * common + first
    context.tokens = list(shown)
    context.show(shown)
    other = [5] * common + second
    if same_list:
        shown[:] = other
        other = shown
    expected = common
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        expected += 1
    assert context.shared(other) == expected


class Counting(dict):
    """A dict that counts how often it is asked or changed."""

    touched = 0

    def get(self, *arguments):
        self.touched += 1
        return super().get(*arguments)

    def __setitem__(self, key, value):
        self.touched += 1
        super().__setitem__(key, value)


@pytest.mark.parametrize("length", [100, 1_000, 10_000])
def test_a_step_touches_as_many_entries_however_long_the_text(length):
    drafter = Ngram(VOCAB)
    shown = view([i * i % 97 for i in range(length)])
    propose(drafter, shown)
    shown.state.last = counting = Counting(shown.state.last)
    for token in (3, 4, 5):
        shown.tokens.append(token)
        propose(drafter, shown)
    assert counting.touched == 3 * 8 * 2


def test_found_in_the_registry_with_its_options():
    options = DrafterOptions(ngram=(2, 3))
    drafter = build("ngram", SimpleNamespace(vocab_size=4), options)
    assert propose(drafter, view([1, 9, 1])) == []
    assert propose(drafter, view([1, 2, 3, 1, 2])) == [3, 1, 2, 3, 1]
    assert propose(drafter, view([1, 2, 4, 1, 2])) == []
