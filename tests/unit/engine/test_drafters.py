"""Several drafters of one engine: who is asked, whose draft is verified, and what each of them hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from taslak.core.draft import Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, Needs, Report, View, build, drafters_of
from taslak.engine.policy import FixedGamma
from taslak.engine.sequence import PLAIN
from taslak.engine.sequence import Sequence as Answering
from taslak.engine.turn import Load, Plan, Step
from taslak.errors import OptionError
from tests.support.decoding import decode, plain, request
from tests.support.scripted import flip, nothing, oracle
from tests.support.tiny import near_model, tiny_model

MODEL = tiny_model(1)
PROMPT = [1, 2, 3, 4, 1, 2, 3]
ASKED = request(PROMPT)
ANSWER = plain(MODEL, [ASKED])[0].ids
WHOLE = [[*PROMPT, *ANSWER]]


class Planned(FixedGamma):
    """The same plan in every step, and the steps as they were told."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(4)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "steps", [])

    __slots__ = ("plan", "steps")

    def plans(
        self, sequences: Sequence[Answering], drafters: Mapping[str, Drafter], load: Load
    ) -> list[Plan]:
        return [self.plan] * len(sequences)

    def record(self, step: Step) -> None:
        self.steps.append(step)


@dataclass
class Sure:
    """Drafts the truth with a confidence, keeps what it saw in its state, and writes down what it is told."""

    confidence: float = 1.0
    needs: Needs = field(default_factory=Needs)
    watch: None = None
    asked: int = 0
    heard: int = 0
    forgotten: int = 0

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = []
        for view, budget in zip(views, budgets, strict=True):
            assert view.state in (None, self)
            view.state = self
            self.asked += 1
            known = WHOLE[0][len(view.tokens) : len(view.tokens) + budget.depth]
            drafts.append(Draft.chain(known, confidence=[self.confidence] * len(known)))
        return drafts

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        self.heard += len(reports)

    def lag(self, view: View) -> int:
        return 0

    def forget(self, view: View) -> None:
        self.forgotten += 1
        view.state = None


def test_who_finds_nothing_is_followed_by_the_next() -> None:
    first, second = nothing(), oracle(WHOLE)
    got = decode(MODEL, {"a": first, "b": second}, [ASKED], gamma=4)[0]
    assert got.ids == ANSWER
    assert got.by["b"].counts.accepted == got.counts.accepted > 0
    assert got.by.keys() <= {"a", "b"}, "where neither drafts, the pass is the first one's"


def test_who_drafts_is_not_followed() -> None:
    second = Sure()
    got = decode(MODEL, {"a": oracle(WHOLE), "b": second}, [ASKED], gamma=4)[0]
    assert got.ids == ANSWER
    assert second.asked == 0
    assert set(got.by) <= {"a", PLAIN}, "the last token may have no room for a draft"


def test_a_draft_that_is_not_sure_enough_gives_way() -> None:
    unsure, second = Sure(0.3), Sure(0.9)
    for least, by in (
        (1.1, "a"),
        (1.3, "b"),
        (3.7, "a"),
    ):  # of 4 tokens: 1.2 and 3.6 are expected to be right
        plan = {"a": Budget(4, 4, least=least), "b": Budget(4, 4, least=least)}
        got = decode(MODEL, {"a": unsure, "b": second}, [ASKED], policy=Planned(plan))[0]
        assert got.ids == ANSWER
        assert got.counts.accepted > 0, "where no later one has a draft, the first one's is verified"
        assert set(got.by) <= {"a", "b", PLAIN}
        assert got.by[by].counts.passes == max(tally.counts.passes for tally in got.by.values())


def test_a_shadow_is_made_and_not_verified() -> None:
    policy = Planned({"a": Budget(3, 3, shadow=True)})
    got = decode(MODEL, {"a": oracle(WHOLE)}, [ASKED], policy=policy)[0]
    assert got.ids == ANSWER
    assert got.counts.drafted == got.counts.accepted == 0
    assert got.counts.passes == len(ANSWER)
    assert set(got.by) == {PLAIN}
    shadows = [turn.shadows["a"] for step in policy.steps for turn in step.turns if turn.shadows]
    assert [s.tokens for s in shadows] == [
        tuple(ANSWER[i : i + 3])[: len(ANSWER) - 1 - i] for i in range(len(shadows))
    ]
    assert all(step.rows == 1 for step in policy.steps[1:])


def test_a_shadow_beside_a_draft_of_another() -> None:
    policy = Planned({"a": Budget(2, 2), "b": Budget(3, 3, shadow=True), "c": Budget(3, 3)})
    drafters: dict[str, Any] = {"a": oracle(WHOLE), "b": flip(WHOLE, 0, 61), "c": Sure()}
    got = decode(MODEL, drafters, [ASKED], policy=policy)[0]
    assert got.ids == ANSWER
    assert got.counts.acceptance_rate == 1.0
    assert drafters["c"].asked == 0
    assert sum(bool(turn.shadows) for step in policy.steps for turn in step.turns) > 3


def test_each_has_its_own_state_hears_of_every_pass_and_is_forgotten() -> None:
    one, two = Sure(), Sure()
    got = decode(MODEL, {"a": one, "b": two}, [ASKED, request([9, 8])], gamma=3)
    assert one.heard == two.heard == sum(answer.counts.passes for answer in got)
    assert one.forgotten == two.forgotten == 2


def test_c38_one_that_fails_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sure):
        def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
            raise RuntimeError("out of ideas")

    got = decode(MODEL, {"a": Broken(), "b": oracle(WHOLE)}, [ASKED], gamma=4)[0]
    assert got.ids == ANSWER
    assert got.by["b"].counts.accepted > 0
    assert got.dropped > 0
    assert caplog.text.count("drafter a failed") == 1


@pytest.mark.parametrize("first", ["ngram", "suffix"])
@pytest.mark.parametrize("second", ["draft-model", "early-exit"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_look_up_with_a_model_behind_it(first: str, second: str, temperature: float) -> None:
    requests = [request(p, temperature=temperature, seed=3) for p in (PROMPT, [7], list(range(20)) * 3)]
    options = DrafterOptions(draft=near_model(1))
    drafters = {name: build(name, MODEL, options) for name in (first, second)}
    got = decode(MODEL, drafters, requests, gamma=4)
    assert [a.ids for a in got] == [a.ids for a in plain(MODEL, requests)]
    assert all(a.dropped == 0 for a in got)
    assert all(any(a.by[name].counts.drafted for a in got if name in a.by) for name in drafters)


def test_features_are_captured_for_whoever_needs_them() -> None:
    seen: dict[str, set[str]] = {"a": set(), "b": set()}

    class Reading(Sure):
        def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
            for report in reports:
                seen["a" if "layer.1" in self.needs.features else "b"].update(report.features)

    one = Reading(needs=Needs(features=("final_norm", "layer.1")))
    two = Reading(needs=Needs(features=("final_norm",)))
    assert decode(MODEL, {"a": one, "b": two}, [ASKED])[0].ids == ANSWER
    assert seen["a"] == seen["b"] == {"final_norm", "layer.1"}


@pytest.mark.parametrize(
    ("name", "lookup", "names"),
    [
        ("suffix", None, ("suffix",)),
        ("suffix+eagle", None, ("suffix", "eagle")),
        ("fallback", None, ("ngram", "draft-model")),
        ("fallback", "suffix", ("suffix", "draft-model")),
    ],
)
def test_names_of_several(name: str, lookup: str | None, names: tuple[str, ...]) -> None:
    assert drafters_of(name, lookup) == names


@pytest.mark.parametrize(
    ("name", "lookup", "message"),
    [
        ("suffix+telepathy", None, "method is 'telepathy'; expected one of cross-vocab, draft-model, "),
        ("suffix+", None, "method is ''"),
        ("suffix+suffix", None, "names a drafter twice"),
        ("suffix+eagle", "ngram", "tries no look-up first; leave lookup out"),
        ("fallback", "eagle", "lookup is 'eagle'; expected one of ngram, suffix"),
        ("fallback", "fallback", "method is 'fallback'; expected one of"),
    ],
)
def test_names_that_mean_nothing(name: str, lookup: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        drafters_of(name, lookup)
