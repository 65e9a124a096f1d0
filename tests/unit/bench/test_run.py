"""A whole small benchmark: what is measured, that texts are identical, and that a stopped run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taslak.bench import run as runs
from taslak.bench.decoding import Asked, decode, difference
from taslak.bench.grid import PLAINLY, Setting, Way
from taslak.bench.pipeline import LOG, Plan, check, run
from taslak.bench.prompts import BenchPrompt
from taslak.bench.results import Results
from taslak.errors import OptionError
from tests.unit.bench.conftest import PLAN, Ran, tiny_models, tiny_prompts

SMALL = replace(
    PLAN,
    methods=("suffix",),
    gammas=(2,),
    temperatures=(0.0,),
    contexts=(0,),
    max_tokens=(4,),
    batches=(1,),
    each=1,
)
SMALL_CALLS = 2 * 2 * 2
"""Prompts, plain and one way, repeats."""


def test_every_cell_is_run_in_every_round(ran: Ran) -> None:
    made = ran.results.measurements
    base = [one for one in made if one.series == 0]
    assert len(base) == 4 * 3 * 2
    assert {one.way for one in base} == {PLAINLY, Way("suffix", 2), Way("draft-model", 2)}
    gammas = [one for one in made if one.series == 1]
    assert {one.way for one in gammas} == {PLAINLY, Way("suffix", 1), Way("draft-model", 1)}
    assert {one.setting for one in made if one.series > 1} == {
        Setting(0.9, 0, 8, 1), Setting(0.0, 40, 8, 1), Setting(0.0, 0, 8, 2),
    }  # fmt: skip


def test_ways_take_turns_and_the_order_is_turned_round(ran: Ran) -> None:
    first = [one for one in ran.results.measurements if one.series == 0][:6]
    ways = [one.way for one in first]
    assert ways[0] == PLAINLY
    assert ways[3:] == ways[:3][::-1]
    assert [one.round for one in first] == [0, 0, 0, 1, 1, 1]


def test_texts_are_identical_and_figures_add_up(ran: Ran) -> None:
    for one in ran.results.measurements:
        for answer in one.answers:
            assert answer.identical is True
            assert answer.difference is None
            assert answer.tokens == sum(map(sum, (turn.emitted for turn in answer.turns))) == 8
        assert one.counts.emitted == one.tokens
        assert 0 < one.first < one.seconds
        assert one.draft + one.passing + one.other <= one.seconds
    drafted = [one for one in ran.results.measurements if one.way.method == "draft-model"]
    assert sum(one.counts.accepted for one in drafted) > 0
    assert all(one.counts.drafted == 0 for one in ran.results.measurements if one.way == PLAINLY)


def test_contexts_are_padded_to(ran: Ran) -> None:
    padded = [one for one in ran.results.measurements if one.setting.context == 40]
    assert all(25 < answer.prompt_tokens <= 40 for one in padded for answer in one.answers)


def test_results_come_back_from_their_file(ran: Ran, tmp_path: Path) -> None:
    ran.results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == ran.results
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(OptionError, match="holds no results"):
        Results.read(tmp_path / "other.json")


class Counting:
    """Counts the calls that were really made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stop_after: int | None = None) -> None:
        self.calls = 0
        own = runs._Run._call

        def call(*args: Any) -> Any:
            if self.calls == stop_after:
                raise KeyboardInterrupt
            self.calls += 1
            return own(*args)

        monkeypatch.setattr(runs._Run, "_call", call)


def test_a_stopped_run_goes_on_and_a_cut_line_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tiny_models()
    with monkeypatch.context() as patch:
        Counting(patch, stop_after=5)
        with pytest.raises(KeyboardInterrupt):
            run(models, SMALL, tiny_prompts(), tmp_path)
    log = tmp_path / LOG
    log.write_text(log.read_text()[:-40])  # a kill in the middle of writing the fifth
    with monkeypatch.context() as patch:
        counting = Counting(patch)
        results = run(models, SMALL, tiny_prompts(), tmp_path)
    assert counting.calls == SMALL_CALLS - 4
    assert len(results.measurements) == SMALL_CALLS
    assert all(answer.identical for one in results.measurements for answer in one.answers)
    with monkeypatch.context() as patch:
        counting = Counting(patch)
        assert run(models, SMALL, tiny_prompts(), tmp_path).measurements == results.measurements
        assert counting.calls == 0
        run(models, replace(SMALL, max_tokens=(3,)), tiny_prompts(), tmp_path)  # other settings, other keys
        assert counting.calls == SMALL_CALLS
        run(models, SMALL, tiny_prompts(), tmp_path, fresh=True)
        assert counting.calls == 2 * SMALL_CALLS


def test_a_difference_is_found_and_said(ran: Ran) -> None:
    model = ran.models.model(Way("suffix", 2))
    setting, prompts = Setting(max_tokens=6), tiny_prompts()[:2]
    asked = Asked(model, prompts, setting)
    call = decode(model, asked, 2, speculate=True)
    assert difference(model, asked, call, 1, call.ids(1)) is None
    ((*ids,),) = call.ids(1)
    ids[3] = (ids[3] + 1) % 50
    found = difference(model, asked, call, 1, [ids])
    assert found is not None
    assert (found["turn"], found["position"]) == (0, 3)
    assert found["plain"] == ids[3]
    assert found["speculative"] == call.ids(1)[0][3]


def test_second_turns_follow_the_models_own_answers(ran: Ran) -> None:
    model = ran.models.model(Way("suffix", 2))
    prompts = [BenchPrompt("a", "t", "", "ABC", ("DEF", "GHI")), BenchPrompt("b", "t", "", "XYZ")]
    asked = Asked(model, prompts, Setting(max_tokens=5))
    call = decode(model, asked, 2, speculate=True)
    assert [len(turns) for turns in call.said] == [3, 1]
    first, second, _ = call.said[0]
    (number, request), *rest = asked.requests(model, [[first.answer.text], ["done"]], True)
    assert (number, rest) == (0, [])
    assert len(request.prompt) == second.answer.prompt_tokens > first.answer.prompt_tokens
    plain = decode(model, asked, 2, speculate=False)
    assert [plain.ids(i) for i in range(2)] == [call.ids(i) for i in range(2)]


def test_sampled_rejection_promises_no_text(tmp_path: Path) -> None:
    plan = replace(SMALL, temperatures=(0.9,), repeats=1)
    results = run(tiny_models("rejection"), plan, tiny_prompts(), tmp_path)
    assert {answer.identical for m in results.measurements if m.way != PLAINLY for answer in m.answers} == {
        None
    }


def test_what_cannot_be_run_is_said_at_once(ran: Ran, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="method is 'telepathy'"):
        check(Plan(methods=("telepathy",), batches=(1,)), tiny_prompts())
    with pytest.raises(OptionError, match="leave it out"):
        check(Plan(methods=("plain",), batches=(1,)), tiny_prompts())
    with pytest.raises(OptionError, match="needs a head"):
        run(ran.models, replace(SMALL, methods=("medusa",)), tiny_prompts(), tmp_path)
    with pytest.raises(OptionError, match="names no draft model that was given; given: near"):
        run(ran.models, replace(SMALL, methods=("draft-model:far",)), tiny_prompts(), tmp_path)
    with pytest.raises(OptionError, match="repeats is 0"):
        run(ran.models, replace(SMALL, repeats=0), tiny_prompts(), tmp_path)
