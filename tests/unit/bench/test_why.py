"""Agreement of p and q: the formulas, and that drafters are asked at the right places."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from taslak.bench.log import Log
from taslak.bench.methods import Models
from taslak.bench.results import Agreement
from taslak.bench.why import UNTRAINED, agree, agreements
from tests.support.tiny import tiny_model
from tests.unit.bench.conftest import tiny_models, tiny_prompts
from tests.unit.engine.test_language_model import Tokenizer, pretrained


def test_agreement_by_hand() -> None:
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    q = torch.tensor([0.25, 0.75, 0.0, 0.0], dtype=torch.float64)
    found = agree(p, q)
    assert found.overlap == pytest.approx(0.55)  # 1 − TV, TV = ½ (0.25 + 0.45 + 0.2)
    assert found.top1 == 0.0
    assert found.outside == pytest.approx(0.2)
    even = 0.001 / 4
    kl = 0.5 * math.log(0.5 / (0.999 * 0.25 + even)) + 0.3 * math.log(0.3 / (0.999 * 0.75 + even))
    assert found.kl == pytest.approx(kl + 0.2 * math.log(0.2 / even))
    same = agree(p, p)
    assert (same.overlap, same.top1, same.outside) == (pytest.approx(1.0), 1.0, 0.0)
    assert same.kl == pytest.approx(0.0, abs=2e-3)


def measured(models: Models, methods: list[str], folder: Path) -> dict[tuple[str, float], Agreement]:
    found = agreements(
        models, methods, tiny_prompts()[:1], (0.0, 0.9), Log(folder / "log.jsonl"), max_tokens=8
    )
    return {(one.drafter, one.temperature): one for one in found}


def test_the_target_itself_agrees_everywhere(tmp_path: Path) -> None:
    target = pretrained(tiny_model(1), Tokenizer())
    models = Models(target, {"same": pretrained(tiny_model(1), Tokenizer())})
    found = measured(models, ["draft-model"], tmp_path)
    assert set(found) == {("draft-model", 0.0), ("draft-model", 0.9)}
    for one in found.values():
        assert one.places == 7  # a draft's last token could not be verified any more
        assert one.overlap == pytest.approx(1.0, abs=1e-5)
        assert one.top1 == 1.0


def test_untrained_and_near_drafters_lie_where_they_should(tmp_path: Path) -> None:
    models = tiny_models()
    found = measured(models, ["suffix", "draft-model", "eagle"], tmp_path)
    assert {drafter for drafter, _ in found} == {"draft-model", "eagle", "eagle" + UNTRAINED}
    near, untrained = found["draft-model", 0.9], found["eagle" + UNTRAINED, 0.9]
    assert near.overlap > 0.8 > untrained.overlap
    assert near.kl is not None
    assert untrained.kl is not None
    assert near.kl < untrained.kl
    assert found["draft-model", 0.0].kl is None
    assert found["draft-model", 0.0].overlap == found["draft-model", 0.0].top1


def test_what_was_compared_is_not_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tiny_models()
    first = measured(models, ["draft-model"], tmp_path)
    monkeypatch.setattr("taslak.bench.why._places", None)
    assert measured(models, ["draft-model"], tmp_path) == first
