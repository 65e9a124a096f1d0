"""The fallback's two parts: who is asked, with which views, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from taslak.core.draft import Draft
from taslak.core.noise import Stream
from taslak.core.sampling import Sampling
from taslak.drafters import base
from taslak.drafters.base import NOTHING, Budget, DrafterOptions, Needs, Report, View, build
from taslak.drafters.fallback import Fallback
from taslak.drafters.ngram import Ngram, NgramIndex
from taslak.drafters.suffix import Suffix, SuffixIndex
from taslak.errors import OptionError

TARGET = SimpleNamespace(vocab_size=100)
BUDGET = Budget(4, 4)


def view(tokens: list[int]) -> View:
    return View(tokens=tokens, prompt_length=1, sampling=Sampling(), key=0)


@dataclass
class Scripted:
    """A model that drafts `answer`, keeps the tokens it saw in its state, and writes down its calls."""

    answer: tuple[int, ...] = (50, 51)
    needs: Needs = field(default_factory=Needs)
    watch: None = None
    calls: list[list[View]] = field(default_factory=list)
    observed: list[tuple[list[View], list[Report]]] = field(default_factory=list)
    forgotten: list[View] = field(default_factory=list)

    def propose(self, views, budgets):
        self.calls.append(list(views))
        for shown in views:
            shown.state = list(shown.tokens)
        return [Draft.chain(self.answer[: budget.depth]) for budget in budgets]

    def observe(self, views, reports):
        self.observed.append((list(views), list(reports)))

    def lag(self, view):
        return len(view.tokens) - len(view.state or [])

    def forget(self, view):
        self.forgotten.append(view)
        view.state = None


def test_the_look_up_goes_first_and_the_model_is_not_asked():
    model = Scripted()
    drafts = Fallback(Ngram(100), model).propose([view([1, 2, 3, 1])], [BUDGET])
    assert [draft.tokens for draft in drafts] == [(2, 3, 1, 2)]
    assert model.calls == []


def test_the_model_is_asked_once_for_all_views_that_need_it():
    model = Scripted()
    views = [view([1, 2]), view([7, 8, 7]), view([3]), view([5])]
    budgets = [BUDGET, Budget(2, 2), NOTHING, Budget(1, 3)]
    drafts = Fallback(Ngram(100), model).propose(views, budgets)
    assert [draft.tokens for draft in drafts] == [(50, 51), (8, 7), (), (50,)]
    assert [[asked.tokens for asked in call] for call in model.calls] == [[[1, 2], [5]]]


def test_no_budget_asks_nobody():
    model = Scripted()
    budgets = [NOTHING, Budget(3, 0), Budget(0, 3)]
    drafts = Fallback(Ngram(100), model).propose([view([1, 2]) for _ in budgets], budgets)
    assert not any(drafts)
    assert model.calls == []


def test_c37_the_parts_views_stay_in_step_with_the_outer_one():
    model = Scripted()
    fallback = Fallback(Ngram(100), model)
    outer = view([1, 2])
    fallback.propose([outer], [BUDGET])
    seen = model.calls[0][0]
    outer.tokens, outer.prompt_length, outer.key = [4, 5, 6], 2, 9
    outer.sampling, outer.stream, outer.exact_q = Sampling(temperature=1.0), Stream.DRAFT, True
    fallback.propose([outer], [BUDGET])
    assert model.calls[1][0] is seen
    for part in (outer.state.lookup, outer.state.model):
        assert part.tokens is outer.tokens
        assert (part.prompt_length, part.sampling, part.key) == (2, outer.sampling, 9)
        assert (part.stream, part.exact_q, part.position) == (Stream.DRAFT, True, 3)
    assert outer.state.model.state == [4, 5, 6]
    assert isinstance(outer.state.lookup.state, NgramIndex)


def test_the_model_catches_up_after_the_look_up_had_its_turn():
    model = Scripted()
    fallback = Fallback(Ngram(100), model)
    outer = view([1, 2])
    assert fallback.propose([outer], [BUDGET])[0].tokens == (50, 51)
    outer.tokens += [1]
    assert fallback.propose([outer], [BUDGET])[0].tokens == (2, 1, 2, 1)
    assert fallback.lag(outer) == 1
    outer.tokens += [9]
    assert fallback.lag(outer) == 2
    assert fallback.propose([outer], [BUDGET])[0].tokens == (50, 51)
    assert fallback.lag(outer) == 0


def test_c24_c25_sequences_do_not_mix():
    fallback = Fallback(Suffix(100), Scripted())
    views = [view([1]), view([1, 2, 1]), view(list(range(20)))]
    for _ in range(3):
        together = fallback.propose(views, [BUDGET] * 3)
        alone = [
            Fallback(Suffix(100), Scripted()).propose([view(list(shown.tokens))], [BUDGET])[0]
            for shown in views
        ]
        assert together == alone
        for shown in views:
            shown.tokens.extend([3, 4])


def test_both_parts_hear_of_every_pass():
    lookup, model = Scripted(answer=()), Scripted()
    fallback = Fallback(lookup, model)
    outer, report = view([1, 2, 3]), Report(0, [1, 2])
    fallback.observe([outer], [report])
    assert lookup.observed == [([outer.state.lookup], [report])]
    assert model.observed == [([outer.state.model], [report])]


def test_both_parts_forget():
    lookup, model = Scripted(answer=()), Scripted()
    fallback = Fallback(lookup, model)
    outer = view([1, 2, 3])
    fallback.forget(outer)
    fallback.propose([outer], [BUDGET])
    parts = outer.state
    fallback.forget(outer)
    fallback.forget(outer)
    assert outer.state is None
    assert (lookup.forgotten, model.forgotten) == ([parts.lookup], [parts.model])
    assert parts.model.state is None


@pytest.mark.parametrize(("first", "second", "layer"), [(None, None, None), (2, None, 2), (None, 3, 3)])
def test_needs_are_the_union(first, second, layer):
    fallback = Fallback(
        Scripted(needs=Needs(("final_norm", "layer.1"), first)),
        Scripted(needs=Needs(("layer.1", "layer.2"), second)),
    )
    assert fallback.needs == Needs(("final_norm", "layer.1", "layer.2"), layer)


@pytest.mark.parametrize(("lookup", "state"), [("ngram", NgramIndex), ("suffix", SuffixIndex)])
def test_built_from_its_parts_names(monkeypatch, lookup, state):
    model = Scripted()
    monkeypatch.setitem(base.REGISTRY, "draft-model", base.Method(lambda target, options: model))
    fallback = build("fallback", TARGET, DrafterOptions(draft=SimpleNamespace(), lookup=lookup))
    outer = view([1, 2])
    assert fallback.propose([outer], [BUDGET])[0].tokens == (50, 51)
    assert isinstance(outer.state.lookup.state, state)


def test_a_missing_draft_model_is_named():
    with pytest.raises(OptionError, match="needs a draft model and got none; name one with --draft"):
        build("fallback", TARGET, DrafterOptions())


def test_an_unknown_look_up_is_refused():
    with pytest.raises(OptionError, match="lookup is 'fallback'; expected one of ngram, suffix"):
        build("fallback", TARGET, DrafterOptions(lookup="fallback"))
