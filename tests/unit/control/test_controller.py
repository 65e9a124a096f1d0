"""The controller against drafters and costs that are known exactly: what it drafts, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from taslak.control.controller import GAMMA, Controller
from taslak.control.costs import Costs, DraftCost, PassCost, RestCost
from taslak.control.estimate import Prior
from taslak.core.draft import Draft
from taslak.drafters.base import Budget, Drafter, DrafterOptions, View, build
from taslak.engine import step
from taslak.engine.sequence import Sequence as Answering
from taslak.engine.turn import Load, Plan, Step
from tests.support.decoding import Letters, decode, plain, request
from tests.support.scripted import Scripted, flip, nothing, oracle
from tests.support.tiny import near_model, tiny_model

MODEL = tiny_model(1)
PROMPT = [1, 2, 3, 4, 1, 2, 3]
LONG_MODEL = tiny_model(1, context=1024)
LONG = 200
STAIRS = PassCost([1, 4, 5, 8, 9, 12, 13, 17], [1.0, 1.1, 1.5, 1.6, 2.0, 2.1, 2.5, 2.9])
"""Flat over four rows, and a step up to each next four."""


class Known(Costs):
    """Costs that no clock changes."""

    def saw_pass(self, *_: Any) -> None: ...
    def saw_draft(self, *_: Any) -> None: ...
    def saw_rest(self, *_: Any) -> None: ...


def known(level: float = 0.02, passing: PassCost = STAIRS) -> Costs:
    return Known(
        passing,
        {"draft-model": DraftCost(level, level), "eagle": DraftCost(level, level)},
        {"greedy": RestCost(0.02, 0.02), "sampled": RestCost(0.02, 0.02)},
    )


class Watched(Controller):
    """Writes down its plans and what each step cost by the figures it was given."""

    def __init__(self, costs: Costs, priors: Mapping[str, Prior] | None = None, **options: Any) -> None:
        super().__init__(costs, priors, **options)
        self.made: list[Plan] = []
        self.loads: list[Load] = []
        self.spent = 0.0
        self.tokens = 0

    def plans(
        self, sequences: Sequence[Answering], drafters: Mapping[str, Drafter], load: Load
    ) -> list[Plan]:
        found = super().plans(sequences, drafters, load)
        self.made += found
        self.loads += [load] * len(found)
        return found

    def record(self, step: Step) -> None:
        super().record(step)
        drafted = {name for turn in step.turns for name in (turn.by, *turn.shadows) if name is not None}
        deep = {
            name: max(
                turn.shadows.get(name, turn.draft).depth
                for turn in step.turns
                if name in turn.shadows or turn.by == name
            )
            for name in drafted
        }
        self.spent += self.costs.pass_(sum(1 + len(turn.draft) for turn in step.turns), step.load.context)
        self.spent += sum(self.costs.draft(name, depth) for name, depth in deep.items() if depth) + 0.02
        self.tokens += sum(len(turn.path) + turn.bonus for turn in step.turns)

    @property
    def pace(self) -> float:
        return self.tokens / self.spent


PLAIN_PACE = 1 / 1.02


def answer(
    drafter: Scripted, costs: Costs, priors: Mapping[str, Prior] | None = None, **options: Any
) -> Watched:
    """A long answer under control; its text must be plain decoding's."""
    policy = Watched(costs, priors)
    asked = request(PROMPT, max_tokens=LONG, **options)
    expected = plain(MODEL, [asked])[0]
    got = decode(MODEL, {"draft-model": drafter}, [asked], policy=policy)[0]
    assert got.ids == expected.ids
    assert got.dropped == 0
    return policy


def truth(**options: Any) -> list[list[int]]:
    asked = request(PROMPT, max_tokens=LONG, **options)
    return [[*PROMPT, *plain(MODEL, [asked])[0].ids]]


def test_what_is_always_right_is_drafted_to_the_end() -> None:
    policy = answer(oracle(truth()), known())
    late = [plan["draft-model"].depth for plan in policy.made[20:-3]]
    # 7 tokens fill the second stair, an eighth opens the third: 8.98 / 2.2 a second against 8 / 1.78
    assert set(late) == {7}
    assert policy.pace > 3.5 * PLAIN_PACE


def test_what_is_always_wrong_is_switched_off_and_costs_next_to_nothing() -> None:
    """Wherever it starts from; after that only probes, which take no row of the pass."""
    policy = answer(flip(truth(), 0, 61), known(), {"draft-model": Prior((0.7,))})
    drafting = [plan for plan in policy.made if plan and not plan["draft-model"].shadow]
    assert 0 < len(drafting) <= 18
    assert all(not plan or plan["draft-model"].shadow for plan in policy.made[40:])
    assert any(plan and plan["draft-model"].shadow for plan in policy.made[40:]), "it is tried again"
    assert policy.pace > 0.97 * PLAIN_PACE


def test_what_is_known_to_be_wrong_is_not_even_tried() -> None:
    policy = answer(flip(truth(), 0, 61), known(), {"draft-model": Prior((0.02,))})
    assert all(not plan or plan["draft-model"].shadow for plan in policy.made)
    assert policy.pace > 0.985 * PLAIN_PACE


@pytest.mark.parametrize("right", [1, 2, 3])
def test_it_stops_where_the_drafts_stop_being_right(right: int) -> None:
    policy = answer(flip(truth(), right, 61), known())
    assert {plan["draft-model"].depth for plan in policy.made[30:-3] if plan} <= {right, right + 1}
    best = (right + 1) / (known().pass_(right + 1) + 0.02 * (right + 1) + 0.02)
    assert policy.pace > 0.93 * best


def test_a_stair_that_one_token_does_not_pay_for_is_taken_by_three() -> None:
    """The second row doubles the pass, the third and fourth are free: row by row one would end at none."""
    steep = PassCost([1, 2, 4, 5, 17], [1.0, 2.0, 2.0, 9.0, 90.0])
    policy = answer(oracle(truth()), known(passing=steep))
    assert {plan["draft-model"].depth for plan in policy.made[20:-5]} == {3}
    assert policy.pace > 1.6 * PLAIN_PACE


def test_a_drafter_that_becomes_right_is_found_out() -> None:
    texts = truth()

    def script(tokens: Sequence[int], depth: int) -> Sequence[int]:
        told = list(oracle(texts)._script(tokens, depth))
        return told if len(tokens) > 80 else [(token + 1) % 61 for token in told]

    policy = answer(Scripted(script), known(), {"draft-model": Prior((0.02,))})
    assert any(
        plan and not plan["draft-model"].shadow and plan["draft-model"].depth > 2 for plan in policy.made
    )
    assert policy.pace > 1.1 * PLAIN_PACE


def test_a_drafter_that_costs_more_than_it_can_give_is_off() -> None:
    policy = answer(oracle(truth()), known(level=1.5))
    assert all(not plan or plan["draft-model"].shadow for plan in policy.made)


@pytest.mark.parametrize("tokens", [500, 900])
def test_what_is_often_right_and_never_pays_costs_next_to_nothing(tokens: int) -> None:
    """Its first token is always right, and drafting it costs as much as a pass."""
    asked = request(PROMPT, max_tokens=tokens)
    texts = [[*PROMPT, *plain(LONG_MODEL, [asked])[0].ids]]
    costs = known()
    costs.drafters["draft-model"] = DraftCost(1.0, 0.01)
    policy = Watched(costs)
    decode(LONG_MODEL, {"draft-model": flip(texts, 1, 61)}, [asked], policy=policy)
    assert any(plan["draft-model"].shadow for plan in policy.made if plan)
    assert policy.pace > 0.97 * PLAIN_PACE


def test_under_rejection_a_look_up_that_is_wrong_is_off_and_in_nobodys_way() -> None:
    """What stands in the text was not drawn: it is scored as a shadow under either rule."""
    options = {"temperature": 0.9, "verify": "rejection", "max_tokens": 120}
    wrong = Scripted(lambda tokens, depth: [(tokens[-1] + 1) % 61] * depth)
    drafters = {
        "ngram": wrong,
        "draft-model": build("draft-model", MODEL, DrafterOptions(draft=near_model(1))),
    }
    policy = Watched(known(level=0.001), {"ngram": Prior((0.02,))})
    got = decode(MODEL, drafters, [request(PROMPT, **options)], policy=policy)[0]
    assert all(plan["ngram"].shadow for plan in policy.made if "ngram" in plan)
    assert got.by["draft-model"].counts.accepted > 10


def test_under_rejection_what_is_off_is_tried_before_the_one_that_drafts() -> None:
    options = {"temperature": 0.9, "verify": "rejection", "max_tokens": 150}
    good = build("draft-model", MODEL, DrafterOptions(draft=near_model(1)))
    other = build("draft-model", MODEL, DrafterOptions(draft=near_model(1)))
    policy = Watched(known(level=0.001), {"eagle": Prior((0.02,))})
    got = decode(MODEL, {"draft-model": good, "eagle": other}, [request(PROMPT, **options)], policy=policy)[0]
    assert got.by["eagle"].counts.drafted > 0, "as good as the other, and thought to be useless"
    assert got.by["eagle"].counts.accepted > 0


def test_steps_that_draft_nothing_are_told_and_taught() -> None:
    """Without a look-up too: else nothing would be learnt of the machine, and no speed-up be known."""
    costs = Costs(PassCost([1, 17], [10.0, 20.0]), {"draft-model": DraftCost(50.0, 1.0)})
    policy = Controller(costs, {"draft-model": Prior((0.02,))})
    got = decode(MODEL, {"draft-model": oracle(truth())}, [request(PROMPT, max_tokens=60)], policy=policy)[0]
    assert got.counts.drafted == 0
    assert got.speedup is not None
    assert costs.scale < 0.9, "passes of a tiny model take no ten seconds"


def test_a_drafter_that_can_not_say_how_far_it_is_behind_loses_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = flip(truth(), 0, 61)

    def lost(_: View) -> int:
        raise RuntimeError("lost")

    drafter.lag = lost  # type: ignore[method-assign]
    asked = request(PROMPT, max_tokens=LONG)
    got = decode(MODEL, {"draft-model": drafter}, [asked], policy=Watched(known()))[0]
    assert got.ids == plain(MODEL, [asked])[0].ids
    assert caplog.text.count("policy failed") == 1


def test_levels_of_a_tree_are_counted_as_levels() -> None:
    """Eight nodes at most: what they are spread over costs a call each."""
    policy = Watched(known(level=0.05, passing=PassCost([1, 40], [1.0, 1.2])), branch=4, nodes=8)
    decode(MODEL, {"eagle": oracle(truth())}, [request(PROMPT, max_tokens=LONG)], policy=policy)
    depths = [plan["eagle"].depth for plan in policy.made[3:-3] if plan]
    flat = Watched(known(level=0.05, passing=PassCost([1, 40], [1.0, 1.2])))
    decode(MODEL, {"eagle": oracle(truth())}, [request(PROMPT, max_tokens=LONG)], policy=flat)
    assert max(depths) <= max(plan["eagle"].depth for plan in flat.made[3:-3] if plan)
    assert policy.widths == [4, 4, 0, 0, 0, 0, 0, 0]


def test_of_two_drafters_the_better_one_drafts() -> None:
    texts = truth()
    policy = Watched(known())
    good, bad = oracle(texts), flip(texts, 0, 61)
    got = decode(
        MODEL, {"eagle": bad, "draft-model": good}, [request(PROMPT, max_tokens=LONG)], policy=policy
    )[0]
    assert [*PROMPT, *got.ids] == texts[0]
    assert got.by["draft-model"].counts.accepted > 0.7 * LONG
    late = policy.made[30:-3]
    assert all(plan["draft-model"].depth > 2 for plan in late)
    assert all(plan["eagle"].shadow for plan in late if "eagle" in plan)
    assert policy.pace > 3.0 * PLAIN_PACE


def test_c35_what_a_request_learnt_is_gone_with_it() -> None:
    """Two requests one after the other draft as each would alone, and side by side neither follows the other:
    what one accepts says nothing of the other."""
    texts = truth()
    other = [9, 8, 7, 9, 8, 7]
    for first in (flip(texts, 0, 61), oracle(texts)):
        policy = Watched(known())
        drafter = {"draft-model": first}
        decode(MODEL, drafter, [request(PROMPT, max_tokens=60)], policy=policy)
        assert not len(policy._own)
        before = len(policy.made)
        decode(MODEL, drafter, [request(other, max_tokens=30)], policy=policy)
        alone = Watched(known())
        decode(MODEL, drafter, [request(other, max_tokens=30)], policy=alone)
        assert policy.made[before:] == alone.made
    assert policy.priors == Watched(known()).priors


def test_side_by_side_each_has_its_own_depth() -> None:
    """One text the drafter knows, one it gets wrong: the first goes deep, the second is left alone."""
    other = [9, 8, 7, 9, 8, 7]
    easy, hard = request(PROMPT, max_tokens=100), request(other, max_tokens=100)
    whole = [[*r.prompt, *plain(MODEL, [r])[0].ids] for r in (easy, hard)]
    right, wrong = oracle(whole[:1]), flip(whole[1:], 0, 61)

    def script(tokens: Sequence[int], depth: int) -> Sequence[int]:
        return right._script(tokens, depth) or wrong._script(tokens, depth)

    policy = Watched(known(passing=PassCost([1, 33], [1.0, 2.0])))
    answers = decode(MODEL, {"draft-model": Scripted(script)}, [easy, hard], policy=policy)
    assert [[*r.prompt, *a.ids] for r, a in zip((easy, hard), answers, strict=True)] == whole
    assert answers[0].counts.tau > 4  # type: ignore[operator]
    assert answers[1].by["draft-model"].counts.drafted < 40


def test_a_look_up_that_nothing_comes_of_is_asked_now_and_then_beside_what_drafts() -> None:
    policy = Watched(known())
    asked = request(PROMPT, max_tokens=LONG)
    decode(MODEL, {"suffix": nothing(), "draft-model": oracle(truth())}, [asked], policy=policy)
    late = ["suffix" in plan for plan in policy.made[16:]]
    assert len(late) > 8
    assert all(any(late[i : i + 4]) for i in range(len(late) - 3))
    assert not all(late)


class Modest(Scripted):
    """Right, and says of each token that it hardly believes in it."""

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        sure = [0.3 * 0.95**depth for depth in range(GAMMA)]
        found = []
        for draft, budget in zip(super().propose(views, budgets), budgets, strict=True):
            known = [each for each in sure[: len(draft)] if each >= budget.stop_below]
            found.append(Draft.chain(draft.tokens[: len(known)], confidence=known))
        return found


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}], ids=["greedy", "sampled"])
def test_a_look_up_thought_less_of_than_it_deserves_is_found_out(options: dict[str, Any]) -> None:
    """What it finds is not thought good enough to be verified: the text to come scores it."""
    look_up = Modest(oracle(truth(**options))._script)
    policy = Watched(known(), {name: Prior((0.1,), trust=0.2) for name in ("suffix", "suffix, drawn")})
    got = decode(MODEL, {"suffix": look_up}, [request(PROMPT, max_tokens=LONG, **options)], policy=policy)[0]
    assert got.by["suffix"].counts.accepted > LONG / 2


class Standing(Watched):
    """Looks at what a decision stands for, and takes the drafters away for one step. The engine survives a
    policy that fails: what is seen is kept, and judged by the test."""

    stood: bool | None = None
    without: list[Plan] | None = None
    beside: list[int] | None = None

    def plans(
        self, sequences: Sequence[Answering], drafters: Mapping[str, Drafter], load: Load
    ) -> list[Plan]:
        if len(self.made) == 7:
            self.stood = self.own(sequences[0]).stands > 0
            self.without = super().plans(sequences, {}, load)
        found = super().plans(sequences, drafters, load)
        if load.rows > 1:
            self.beside = [*(self.beside or []), self.own(sequences[0]).stands]
        return found


def test_a_decision_stands_for_steps_like_its_own() -> None:
    policy = Standing(known(), {"draft-model": Prior((0.95,))})
    decode(MODEL, {"draft-model": oracle(truth())}, [request(PROMPT, max_tokens=LONG)], policy=policy)
    assert policy.stood
    assert policy.without == [{}], "a plan outlived its drafter"
    assert policy.beside == [0], "what is decided beside a prompt stands for more"


def test_the_last_tokens_are_not_overdrafted() -> None:
    policy = answer(oracle(truth()), known())
    most = request(PROMPT, max_tokens=3)
    short = Watched(known())
    decode(MODEL, {"draft-model": oracle(truth())}, [most], policy=short)
    assert all(plan["draft-model"].depth <= 2 for plan in short.made if plan)
    assert policy.max_nodes >= GAMMA


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_every_kind_of_drafter_works_under_control(temperature: float, verify: str) -> None:
    """Look-ups first and a model behind them, several requests at once. Coupled text is plain text."""
    options = {"temperature": temperature, "verify": verify, "max_tokens": 60}
    requests = [request(p, **options, seed=s) for s, p in enumerate((PROMPT, [7], [5, 6, 5, 6, 5]))]
    names = ("ngram", "suffix", "draft-model")
    drafters = {name: build(name, MODEL, DrafterOptions(draft=near_model(1))) for name in names}
    policy = Watched(known(level=0.005, passing=PassCost([1, 64], [1.0, 2.0])), branch=1)
    got = decode(MODEL, drafters, requests, policy=policy)
    assert all(a.dropped == 0 and len(a.ids) == 60 for a in got)
    if verify == "coupled" or temperature == 0.0:
        assert [a.ids for a in got] == [a.ids for a in plain(MODEL, requests)]
    used = {name for a in got for name, tally in a.by.items() if tally.counts.accepted}
    assert "draft-model" in used
    if temperature == 0.0:  # drawn text of so small a model hardly repeats itself
        assert used & {"ngram", "suffix"}
    assert sum(t.counts.emitted for a in got for t in a.by.values()) == sum(len(a.ids) for a in got)


def test_the_speed_up_is_estimated_from_what_steps_cost() -> None:
    asked = request(PROMPT, max_tokens=LONG)
    right = decode(MODEL, {"draft-model": oracle(truth())}, [asked], policy=Controller(known()))[0]
    assert right.speedup is not None
    steady = Known(PassCost([1, 2], [1e9, 1e9]), rest={"greedy": RestCost(0.0, 0.0)})
    off = decode(MODEL, {"draft-model": nothing()}, [asked], policy=Controller(steady))[0]
    took = off.by["draft-model"].took if "draft-model" in off.by else off.by["plain"].took
    # the first pass takes in the prompt and is left out, and the last steps may not be looked at
    assert off.speedup == pytest.approx((LONG - 1) * 1e9 / took, rel=0.02)
    off = decode(
        MODEL,
        {"draft-model": oracle(truth())},
        [request(PROMPT, speculate=False)],
        policy=Controller(known()),
    )
    assert off[0].speedup is None


# -- beside prompts, and what draws take ---------------------------------------------------------------------

FULL = PassCost([1, 16, 17, 33], [1.0, 1.1, 2.0, 34.0])
"""Sixteen rows are next to free, each further one costs two passes."""


def beside_a_prompt(passing: PassCost, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A request that decodes while another's prompt is taken in, sixteen rows at a time."""
    monkeypatch.setattr(step, "CHUNK", 16)
    monkeypatch.setattr(step, "BESIDE", 16)
    policy = Watched(known(passing=passing), {"draft-model": Prior((0.95,))})
    asked = [request(PROMPT, max_tokens=60), request([*range(50)] * 3, max_tokens=2)]
    got = decode(MODEL, {"draft-model": oracle(truth())}, asked, policy=policy)
    assert [a.ids for a in got] == [a.ids for a in plain(MODEL, asked)]
    return policy


def test_beside_a_prompt_a_row_costs_what_it_costs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt fills the block that drafts would have had for nothing: they wait until it is over."""
    policy = beside_a_prompt(FULL, monkeypatch)
    depths = [
        (load.prompt, plan["draft-model"].depth if plan and not plan["draft-model"].shadow else 0)
        for load, plan in zip(policy.loads, policy.made, strict=True)
    ]
    crowded = [depth for prompt, depth in depths if prompt >= 16]
    assert len(crowded) >= 8
    assert not any(crowded)
    alone = [depth for prompt, depth in depths if not prompt]
    assert max(alone) >= 7


def test_beside_a_prompt_that_leaves_room_drafts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = beside_a_prompt(PassCost([1, 200], [1.0, 1.2]), monkeypatch)
    deep = [
        plan["draft-model"].depth
        for load, plan in zip(policy.loads, policy.made, strict=True)
        if load.prompt >= 15 and len(plan)
    ]
    assert deep
    assert min(deep) >= 4


def test_of_steps_that_take_in_prompts_wide_passes_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "CHUNK", 16)
    monkeypatch.setattr(step, "BESIDE", 16)
    costs = Costs(PassCost([1, 2], [1e-9, 2e-9], beyond=5.0), {"draft-model": DraftCost(1e-9, 1e-9)})
    asked = [request(PROMPT, max_tokens=60), request([*range(50)] * 3, max_tokens=1)]
    decode(MODEL, {"draft-model": oracle(truth())}, asked, policy=Controller(costs))
    assert costs.passing.beyond < 4.5, "a row of a tiny model takes no five seconds"


def test_the_time_of_its_own_prompt_is_not_a_requests_pace() -> None:
    policy = Controller(known(passing=PassCost([1, 500], [1.0, 500.0])))
    rates: list[float] = []
    record = policy.record

    def recorded(done: Step) -> None:
        record(done)
        rates.append(policy.own(done.turns[0].sequence).rate)

    policy.record = recorded  # type: ignore[method-assign]
    decode(MODEL, {"draft-model": nothing()}, [request([*range(50)] * 3, max_tokens=40)], policy=policy)
    assert rates[0] == 0.0
    assert rates[-1] == pytest.approx(PLAIN_PACE, rel=0.2)


def test_drawing_takes_time_for_every_token_drafted_or_not() -> None:
    """A token costs 0.3 to draft and 0.85 to draw, a plain step 1.1 with its draw: nothing is gained."""
    for draw, off in ((0.0, False), (0.85, True)):
        costs = known(level=0.3, passing=PassCost([1, 40], [0.2, 0.2]))
        costs.rest["greedy"] = RestCost(0.9, 0.9, draw)
        policy = Watched(costs, {"draft-model": Prior((0.99,))})
        decode(MODEL, {"draft-model": oracle(truth())}, [request(PROMPT, max_tokens=100)], policy=policy)
        drafted = [plan for plan in policy.made if plan and not plan["draft-model"].shadow]
        assert (not drafted) == off


def test_what_a_draw_takes_is_learnt_while_decoding() -> None:
    """Passes and steps take nothing but for ten seconds a drawn token."""
    costs = Costs(PassCost([1, 40], [1.0, 1.0]), {"draft-model": DraftCost(1e-3, 1e-3)})
    costs.rest["greedy"] = RestCost(5.0, 5.0, 5.0)
    policy = Controller(costs, {"draft-model": Prior((0.95,))})
    record = policy.record

    def clocked(done: Step) -> None:
        visited = sum(turn.visited for turn in done.decided)
        record(replace(done, passing=1.0, other=10.0 * visited, drafting=dict.fromkeys(done.drafting, 1e-3)))

    policy.record = clocked  # type: ignore[method-assign]
    for _ in range(4):
        decode(MODEL, {"draft-model": oracle(truth())}, [request(PROMPT, max_tokens=LONG)], policy=policy)
    assert costs.draw_of("greedy") == pytest.approx(10.0, rel=0.15)


def test_a_request_starts_from_what_its_task_is_known_for() -> None:
    tasks = {"code": {"draft-model": Prior((0.9,)), "draft-model, drawn": Prior((0.5,))}}
    policy = Controller(known(), {"draft-model": Prior((0.1,))}, tasks=tasks)
    for asked, first in (
        (request(PROMPT, task="code"), 0.9),
        (request(PROMPT, task="code", temperature=1.0), 0.5),
        (request(PROMPT, task="prose"), 0.1),
        (request(PROMPT), 0.1),
    ):
        sequence = Answering(asked, MODEL.allocate(20), Letters(), MODEL.context)
        estimate = policy.estimate(policy.own(sequence), "draft-model")
        assert estimate.yields(1) == [pytest.approx(first)]


def test_costs_may_be_kept_whenever_a_request_is_over() -> None:
    over: list[int] = []
    policy = Controller(known(), keep=lambda: over.append(1))
    decode(MODEL, {"draft-model": nothing()}, [request(PROMPT), request([7])], policy=policy)
    assert len(over) == 2
