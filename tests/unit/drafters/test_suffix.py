"""The suffix automaton and its counts against brute force, and the drafts made from them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taslak.core.draft import ROOT, Draft
from taslak.core.sampling import Sampling
from taslak.drafters.base import NOTHING, Budget, DrafterOptions, Report, View, build
from taslak.drafters.suffix import CONTEXT, FLOOR, FOLLOWERS, Automaton, Suffix, SuffixIndex

VOCAB = 1_000
LINEAR = Budget(8, 8)
TREE = Budget(4, 16)
texts = st.lists(st.integers(0, 2), max_size=40)


def view(tokens: list[int]) -> View:
    return View(tokens=tokens, prompt_length=1, sampling=Sampling(), key=0)


def propose(drafter: Suffix, shown: View, budget: Budget = LINEAR) -> Draft:
    return drafter.propose([shown], [budget])[0]


def fresh(tokens: list[int], budget: Budget = LINEAR) -> Draft:
    return propose(Suffix(VOCAB), view(list(tokens)), budget)


def automaton_of(tokens: list[int], longest: int = CONTEXT) -> Automaton:
    automaton = Automaton(longest)
    for token in tokens:
        automaton.push(token)
    return automaton


def ends(text: list[int], part: list[int]) -> list[int]:
    """Where `part` ends in `text`, in ascending order."""
    n = len(part)
    return [end for end in range(n, len(text) + 1) if text[end - n : end] == part]


def longest_match(text: list[int], longest: int) -> list[int]:
    for n in range(min(len(text) - 1, longest), 0, -1):
        if len(ends(text, text[-n:])) > 1:
            return text[-n:]
    return []


def state_of(automaton: Automaton, part: list[int]) -> int:
    state = 0
    for token in part:
        state = automaton.next[state][token]
    return state


# The automaton


@given(text=texts, longest=st.sampled_from([1, 2, 3, 5, CONTEXT]))
def test_counts_equal_brute_force_after_every_token(text, longest):
    automaton = Automaton(longest)
    for n, token in enumerate(text, start=1):
        automaton.push(token)
        seen = text[:n]
        for length in range(1, min(n, longest + 1) + 1):
            for start in range(n - length + 1):
                part = seen[start : start + length]
                state = state_of(automaton, part)
                where = ends(seen, part)
                assert automaton.length[automaton.link[state]] < length <= automaton.length[state]
                assert (automaton.count[state], automaton.recent[state]) == (len(where), where[-1])
                assert automaton.followed(state) == len([end for end in where if end < n])


@given(text=texts, longest=st.sampled_from([1, 3, CONTEXT]))
def test_the_match_is_the_longest_suffix_seen_before(text, longest):
    automaton = automaton_of(text, longest)
    state, length = automaton.match()
    expected = longest_match(text, longest)
    assert length == len(expected)
    assert state == state_of(automaton, expected)


@given(text=texts)
def test_no_more_states_and_transitions_than_proved(text):
    automaton = automaton_of(text)
    n = len(text)
    assert len(automaton.link) <= max(2 * n, 2)
    assert sum(map(len, automaton.next)) <= max(3 * n, 1)


class Counting(list):
    """A list that counts how often an entry is read."""

    touched = 0

    def __getitem__(self, index):
        self.touched += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("text", [[0], list(range(7)), [0, 0, 1]], ids=["constant", "periodic", "nearly"])
@pytest.mark.parametrize("length", [1_000, 8_000])
def test_a_token_and_a_draft_cost_the_same_however_long_the_text(text, length):
    drafter = Suffix(VOCAB)
    text = (text * length)[: length + 8]
    shown = view(text[:length])
    propose(drafter, shown)
    automaton = shown.state.automaton
    for name in ("next", "link", "length", "count", "recent"):
        setattr(automaton, name, Counting(getattr(automaton, name)))
    for token in text[length:]:
        shown.tokens.append(token)
        assert len(propose(drafter, shown)) == LINEAR.nodes
    walks = 8 * 3 * (CONTEXT + 1)  # count, recent and link along the longest walk
    states = 8 * 8 * 40  # making the states, and the drafts' nodes
    touched = sum(getattr(automaton, name).touched for name in ("next", "link", "length", "count", "recent"))
    assert touched < walks + states


def test_no_more_followers_are_looked_at_than_allowed():
    many = 4 * FOLLOWERS
    text = [token for i in range(1, many) for token in (0, i)] + [0]
    automaton = automaton_of(text)
    shown = view(text)
    drafter = Suffix(vocab_size=many)
    propose(drafter, shown, TREE)
    shown.state.automaton.count = counting = Counting(shown.state.automaton.count)
    assert len(automaton.next[automaton.match()[0]]) == many - 1
    assert len(propose(drafter, shown, TREE)) == 0  # none makes up a tenth
    assert counting.touched <= FOLLOWERS + 1


# The draft


def reference_confidence(text: list[int], branch: list[int]) -> float:
    """The definition: at each step the longest suffix of text and branch that was ever followed."""
    joint = 1.0
    for d, token in enumerate(branch):
        path = longest_match(text, CONTEXT) + branch[:d]
        while not [end for end in ends(text, path) if end < len(text)]:
            path = path[1:]
        path = path[-CONTEXT:]
        followers = [text[end] for end in ends(text, path) if end < len(text)]
        joint *= followers.count(token) / (len(followers) + 2 * len(set(followers)) / len(path))
    return joint


def check(draft: Draft, text: list[int], budget: Budget) -> None:
    draft.check(VOCAB)
    assert draft.q is None
    assert len(draft) <= budget.nodes
    assert draft.depth <= budget.depth
    assert set(draft.tokens) <= set(text)
    assert draft.confidence is not None or not draft
    for node in range(len(draft)):
        joint = draft.confidence[node]
        assert joint >= max(FLOOR, budget.stop_below)
        assert joint == pytest.approx(reference_confidence(text, draft.branch(node)))
        siblings = [draft.confidence[child] for child in draft.children(node)]
        assert siblings == sorted(siblings, reverse=True)
    if budget.nodes <= budget.depth:
        assert draft.parents == tuple(range(-1, len(draft) - 1))


budgets = st.sampled_from([LINEAR, TREE, Budget(3, 3), Budget(9, 2), Budget(3, 9, 0.3), Budget(16, 16)])


@given(text=texts, budget=budgets)
def test_confidence_is_as_defined_and_budgets_are_kept(text, budget):
    check(fresh(text, budget), text, budget)


@given(text=texts)
def test_the_best_nodes_are_drafted(text):
    """With room for all, the tree holds exactly the paths that are likely enough."""
    budget = Budget(3, 200)
    draft = fresh(text, budget)
    drafted = {tuple(draft.branch(node)) for node in range(len(draft))}
    if longest_match(text, CONTEXT):
        frontier = [[]]
        expected = set()
        while frontier:
            path = frontier.pop()
            for token in set(text):
                joint = reference_confidence(text, [*path, token])
                if joint >= FLOOR:
                    expected.add((*path, token))
                    if len(path) < 2:
                        frontier.append([*path, token])
        assert drafted == expected
    else:
        assert drafted == set()
    few = fresh(text, Budget(3, 4))
    assert few.tokens == draft.tokens[:4]
    assert few.parents == draft.parents[:4]


edits = st.lists(st.tuples(st.integers(0, 200), texts, st.booleans()), max_size=5)


@given(start=texts, edits=edits, budget=budgets, limit=st.sampled_from([2, 7, 16, 10_000]))
def test_c37_the_same_draft_from_any_earlier_state(start, edits, budget, limit):
    drafter = Suffix(VOCAB, limit)
    shown = view(start)
    propose(drafter, shown, budget)
    for cut, more, in_place in edits:
        tokens = shown.tokens[: cut % (len(shown.tokens) + 1)] + more
        if in_place:
            shown.tokens[:] = tokens
        else:
            shown.tokens = tokens
        alone = propose(Suffix(VOCAB, limit), view(list(tokens)), budget)
        assert propose(drafter, shown, budget) == alone
        assert shown.state.automaton.size <= limit
        assert drafter.lag(shown) == 0


def test_more_frequent_followers_come_first():
    text = [8, 5, 0, 8, 6, 2, 8, 5, 3, 8, 7, 4, 8]
    assert fresh(text, Budget(1, 4)).tokens == (5, 7, 6)
    assert fresh(text, Budget(1, 1)).tokens == (5,)


def test_equally_frequent_followers_are_ranked_latest_first():
    assert fresh([8, 6, 0, 8, 5, 1, 8, 7, 2, 8], Budget(1, 3)).tokens == (7, 5, 6)


def test_siblings_hang_off_the_node_they_followed():
    draft = fresh([8, 5, 1, 8, 5, 2, 8], Budget(2, 5))
    assert [draft.branch(node) for node in range(len(draft))] == [[5], [5, 2], [5, 1]]
    assert draft.children(ROOT) == [0]


def test_one_occurrence_is_trusted_as_far_as_its_match_is_long():
    text = [*range(10, 40), 1, 10, 11, 12, 13]  # a match of 4
    draft = fresh(text, Budget(16, 16))
    assert draft.tokens == tuple(range(14, 23))
    assert draft.confidence == pytest.approx([4 * 5 / ((4 + d) * (5 + d)) for d in range(1, 10)])
    short = [*range(10, 40), 1, 10]  # 1/3, 1/6, 1/10
    assert fresh(short, Budget(16, 16, stop_below=0.15)).tokens == (11, 12)
    assert fresh(text, Budget(16, 16, stop_below=0.5)).tokens == (14,)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_periodic_text_is_continued(period):
    text = [i % period for i in range(200)]
    draft = fresh(text, Budget(16, 16))
    assert draft.tokens == tuple(i % period for i in range(200, 216))
    assert fresh([*range(period)] * 3, Budget(3, 3)).tokens == tuple(i % period for i in range(3))


@pytest.mark.parametrize("tokens", [[], [4], [1, 2, 3]])
def test_nothing_seen_before(tokens):
    assert len(fresh(tokens)) == 0


@pytest.mark.parametrize("budget", [NOTHING, Budget(0, 5), Budget(5, 0)])
def test_c03_no_budget_no_draft(budget):
    assert len(fresh([1, 1, 1], budget)) == 0


def test_c20_ids_outside_the_vocabulary_are_never_drafted():
    drafter = Suffix(vocab_size=5)
    assert len(propose(drafter, view([1, 9, 9, 1]))) == 0
    assert propose(drafter, view([1, 2, 9, 1])).tokens == (2,)
    assert propose(drafter, view([1, 2, 7, 1, -3, 8, 1]), TREE).tokens == (2,)


def test_c24_c25_views_of_one_drafter_do_not_mix():
    drafter = Suffix(VOCAB)
    views = [view(list(text)) for text in ([1], [1, 2, 1], list(range(20)), [5] * 7)]
    some = [LINEAR, Budget(1, 1), TREE, Budget(4, 4)]
    for _ in range(3):
        for shown, budget, draft in zip(views, some, drafter.propose(views, some), strict=True):
            assert draft == fresh(shown.tokens, budget)
            shown.tokens.extend([1, 2])


def test_lag_is_what_must_be_read():
    drafter = Suffix(VOCAB)
    shown = view([1, 2, 3])
    assert drafter.lag(shown) == 3
    propose(drafter, shown)
    shown.tokens.extend([1, 2])
    assert drafter.lag(shown) == 2
    drafter.observe([shown], [Report(2, [3, 1])])
    shown.tokens = [1, 2]
    assert drafter.lag(shown) == 2  # an automaton can't be cut
    drafter.forget(shown)
    drafter.forget(shown)
    assert shown.state is None


def test_a_long_text_is_held_from_a_multiple_of_half_the_limit():
    index = SuffixIndex(limit=8)
    sizes = [index.update(list(range(n))).size for n in range(18)]
    assert sizes == [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5]


def test_found_in_the_registry():
    drafter = build("suffix", SimpleNamespace(vocab_size=4), DrafterOptions())
    assert propose(drafter, view([1, 2, 3, 1]), Budget(2, 2)).tokens == (2, 3)
