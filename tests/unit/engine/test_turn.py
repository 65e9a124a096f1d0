"""What a policy is told of a pass before it decides: rows of prompts beside those that decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from taslak.drafters.base import Drafter
from taslak.engine import step as module
from taslak.engine.policy import FixedGamma
from taslak.engine.sequence import Sequence as Answering
from taslak.engine.step import Engine
from taslak.engine.turn import Load, Plan
from tests.support.decoding import Letters, request
from tests.support.scripted import nothing
from tests.support.tiny import tiny_model

MODEL = tiny_model(1)


class Told(FixedGamma):
    loads: list[Load] = []  # noqa: RUF012, cleared below

    def plans(
        self, sequences: Sequence[Answering], drafters: Mapping[str, Drafter], load: Load
    ) -> list[Plan]:
        self.loads.append(load)
        return super().plans(sequences, drafters, load)


def test_a_pass_is_told_with_all_that_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that decodes, one that doesn't speculate, and a prompt of ten taken in by four, four and two."""
    monkeypatch.setattr(module, "CHUNK", 4)
    monkeypatch.setattr(module, "BESIDE", 4)
    Told.loads.clear()
    engine = Engine(MODEL, {"it": nothing()}, Told(1))
    asked = [request([1]), request([2], speculate=False), request([*range(10)])]
    running = [Answering(r, MODEL.allocate(60), Letters(), MODEL.context) for r in asked]
    for _ in range(4):
        engine.step(running)
    for sequence in running:
        engine.forget(sequence)
    rows = [(load.rows, load.prompt, load.deciding) for load in Told.loads]
    assert rows == [(6, 4, 2), (6, 4, 2), (4, 1, 3), (3, 0, 3)]
    assert [load.context for load in Told.loads] == [0, 1 + 1 + 4, 2 + 2 + 8, 3 + 3 + 10]
    assert [load.attended for load in Told.loads] == [6, 2 + 4 * 4 + 6, 4 + 2 * 8 + 1, 16]
