"""Advice: the method that is really faster, none where none is, and how sure that is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from taslak.control import advise as module
from taslak.control.advise import advise
from taslak.control.calibrate import Calibration
from taslak.control.costs import Costs, DraftCost, PassCost, RestCost
from taslak.control.estimate import Prior
from taslak.control.summary import price
from taslak.engine import LanguageModel
from taslak.engine.step import Engine
from taslak.errors import OptionError
from tests.support.decoding import plain, request
from tests.support.scripted import flip, oracle
from tests.support.tiny import near_model, tiny_model
from tests.unit.engine.test_language_model import Tokenizer, pretrained

REQUESTS = [request([1 + i, 2, 3, 4 + i], max_tokens=40) for i in range(6)]


def model(drafter: Any) -> LanguageModel:
    made = LanguageModel(
        pretrained(tiny_model(1), Tokenizer()),
        pretrained(near_model(1), Tokenizer()),
        method="suffix+draft-model",
    )
    made.engine.drafters["draft-model"] = drafter
    return made


def known() -> Calibration:
    costs = Costs(
        PassCost([1, 17], [1e-3, 1.5e-3]),
        {"suffix": DraftCost(1e-6, 1e-6), "draft-model": DraftCost(1e-5, 1e-5)},
        {"greedy": RestCost(1e-4, 1e-4)},
    )
    return Calibration(costs, {"draft-model": Prior((0.6,))})


@pytest.fixture
def steps_as_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is a second, whatever it holds: what is measured is then exact."""
    now = itertools.count()
    ticks = [0.0]
    step = Engine.step

    def counted(self: Engine, sequences: Any) -> None:
        step(self, sequences)
        ticks[0] += 1.0

    monkeypatch.setattr(Engine, "step", counted)
    monkeypatch.setattr(module, "perf_counter", lambda: ticks[0] + 0.0 * next(now))


def texts() -> list[list[int]]:
    return [[*r.prompt, *plain(tiny_model(1), [r])[0].ids] for r in REQUESTS]


@pytest.mark.usefixtures("steps_as_clock")
def test_the_drafter_that_is_right_is_advised() -> None:
    found = advise(model(oracle(texts())), known(), REQUESTS, seconds=1e9)
    assert found.prompts == len(REQUESTS)
    assert [c.method for c in found.candidates] == ["suffix+draft-model", "suffix"]
    best = found.best
    assert best is found.candidates[0]
    assert best.speedup > 3
    assert best.low <= best.speedup <= best.high
    assert best.gamma >= 8
    assert best.draft_bytes > 0
    assert found.candidates[1].draft_bytes == 0
    assert found.plain_tokens_per_second == pytest.approx(1.0), "a token a second, as the clock has it"
    assert found.as_json()["best"] == "suffix+draft-model"


@pytest.mark.usefixtures("steps_as_clock")
def test_where_nothing_is_faster_the_advice_is_not_to() -> None:
    wrong = model(flip(texts(), 0, 61))
    del wrong.engine.drafters["suffix"]
    found = advise(wrong, known(), REQUESTS, seconds=1e9)
    assert found.best is None
    assert found.as_json()["best"] is None
    assert found.candidates[0].gamma == 0
    assert found.candidates[0].speedup == pytest.approx(1.0)


def test_time_is_kept_but_a_few_prompts_are_always_tried() -> None:
    found = advise(model(oracle(texts())), known(), REQUESTS, seconds=0.0)
    assert found.prompts == module.LEAST
    told: list[tuple[int, int]] = []
    advise(
        model(oracle(texts())),
        known(),
        REQUESTS[:2],
        progress=lambda what, done, total: told.append((done, total)),
    )
    assert told == [(0, 2), (1, 2)]


@pytest.mark.usefixtures("steps_as_clock")
def test_one_prompt_proves_nothing() -> None:
    found = advise(model(oracle(texts())), known(), REQUESTS[:1], seconds=1e9)
    assert found.candidates[0].speedup > 3
    assert found.best is None


@pytest.mark.usefixtures("steps_as_clock")
def test_the_price_is_in_the_json() -> None:
    found = advise(model(oracle(texts())), known(), REQUESTS[:4], seconds=1e9)
    priced = found.as_json(per_hour=3.6)
    assert priced["plain_cost"] == pytest.approx(1000.0)
    assert priced["candidates"][0]["cost"] == pytest.approx(1000.0 / found.candidates[0].speedup)
    assert "plain_cost" not in found.as_json()


def test_nothing_to_try_is_said() -> None:
    with pytest.raises(OptionError, match="no prompt to try"):
        advise(model(oracle(texts())), known(), [])
    bare = model(oracle(texts()))
    bare.engine.drafters.clear()
    with pytest.raises(OptionError, match="nothing to draft with"):
        advise(bare, known(), REQUESTS)


def test_the_price_of_a_million_tokens() -> None:
    assert price(tokens_per_second=100.0, per_hour=0.36) == pytest.approx(1.0)
