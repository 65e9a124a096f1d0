"""A file of 50 prompts trains a head for the default model, on the CPU, and the head decodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import taslak
from taslak.training import Schedule, TrainingOptions, train

pytestmark = [pytest.mark.integration, pytest.mark.slow]

THINGS = ("river", "mountain", "bread", "bicycle", "winter", "glass", "music", "horse", "paper", "bridge")
ASKED = (
    "Describe a {}.",
    "Write a riddle about a {}.",
    "Name three uses of a {}.",
    "Draw a {} in words.",
    "Spell {}.",
)


def test_fifty_prompts_end_to_end(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": asked.format(thing)} for asked in ASKED for thing in THINGS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "head"
    options = TrainingOptions(
        kind="eagle",
        out=out,
        prompts=file,
        max_tokens=48,
        evaluate=3,
        schedule=Schedule(epochs=4, batch_tokens=1024),
    )
    result = train(options)
    assert result.answers == 50
    held_out = [point for point in result.curves if point.held_out]
    assert held_out[-1].loss < 0.8 * next(p for p in result.curves if not p.held_out).loss
    found = result.evaluation
    assert found is not None
    assert found.identical == found.prompts == 3
    assert found.training is not None
    assert abs(found.everywhere[0] - found.training) <= 0.02, "of about 130 places"
    assert (out / "curves.png").is_file()
    model = taslak.load(draft=str(out), gamma=2)
    assert model.method == "suffix+eagle"
    prompt = "Write a riddle about a clock."
    drafted, plain = (model.generate(prompt, max_tokens=40, speculate=on) for on in (True, False))
    assert drafted.ids == plain.ids
    assert drafted.counts.drafted > 0
