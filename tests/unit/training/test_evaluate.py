"""Figures of a head in decoding, and what in them is a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taslak.engine.policy import FixedGamma
from taslak.engine.scheduler import Scheduler
from taslak.engine.step import Engine
from taslak.training.evaluate import Evaluation, Shadow, warnings_of
from tests.support.decoding import Letters, plain, request, whole
from tests.support.scripted import Scripted, flip, oracle
from tests.support.tiny import tiny_model

MODEL = tiny_model(2)
REQUESTS = [request([1, 2, 3]), request([4, 5], max_tokens=9)]
GOOD = Evaluation("eagle", 4, 3, 90, 2.0, 0.5, [0.7], [0.7, 0.6], 0.7, 10.0, 15.0, 3)


def hazards(drafter: Scripted, depth: int = 4) -> list[float]:
    shadow = Shadow(drafter, depth)
    scheduler = Scheduler(Engine(MODEL, {"it": shadow}, FixedGamma(depth)), Letters())
    for each in REQUESTS:
        scheduler.add(each)
    answers = [event.answer for _, event in scheduler.run() if event.answer]
    assert sorted(a.ids for a in answers) == sorted(a.ids for a in plain(MODEL, REQUESTS))
    assert all(a.counts.drafted == 0 for a in answers), "the drafts decide nothing"
    return shadow.hazards()


def test_hazards_at_every_place() -> None:
    texts = whole(REQUESTS, plain(MODEL, REQUESTS))
    assert hazards(oracle(texts)) == [1.0, 1.0, 1.0, 1.0]
    assert hazards(flip(texts, 2, 61)) == [1.0, 1.0, 0.0]
    assert hazards(flip(texts, 0, 61)) == [0.0]
    assert hazards(Scripted(lambda tokens, depth: ())) == []


def test_a_good_head_raises_no_warning() -> None:
    assert warnings_of(GOOD) == []
    assert GOOD.speedup == 1.5
    assert GOOD.as_json()["speedup"] == 1.5


@pytest.mark.parametrize("everywhere", [[], [0.01]])
def test_c32_almost_no_acceptance_is_told(everywhere: list[float]) -> None:
    found = warnings_of(replace(GOOD, everywhere=everywhere, training=None))
    assert ["almost no draft is right" in warning for warning in found] == [True]


@pytest.mark.parametrize("training", [0.6, 0.8])
def test_c32_other_features_than_in_training_are_told(training: float) -> None:
    found = warnings_of(replace(GOOD, training=training))
    assert ["other features than it was trained on" in warning for warning in found] == [True]
