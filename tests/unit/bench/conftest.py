"""One small benchmark on tiny random models, shared by the tests of this room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from taslak.bench.methods import Models
from taslak.bench.pipeline import Plan, run
from taslak.bench.prompts import BenchPrompt
from taslak.bench.results import Results
from tests.support.heads import head_for
from tests.support.tiny import near_model, tiny_model
from tests.unit.engine.test_language_model import Tokenizer, pretrained

PLAN = Plan(
    methods=("suffix", "draft-model"),
    gammas=(2, 1),
    temperatures=(0.0, 0.9),
    contexts=(0, 40),
    max_tokens=(8,),
    batches=(1, 2),
    each=2,
    few=1,
    repeats=2,
)


def tiny_models(verify: str = "coupled") -> Models:
    """A target, a draft model that mostly agrees with it, and a random EAGLE head."""
    target = tiny_model(1)
    return Models(
        pretrained(target, Tokenizer()),
        {"near": pretrained(near_model(1, noise=0.02), Tokenizer())},
        {"eagle": head_for("eagle", target)},
        verify,
    )


def tiny_prompts() -> list[BenchPrompt]:
    return [
        BenchPrompt(f"{task}-{i}", task, "en", "ABCDE"[i:] * 3) for task in ("one", "two") for i in range(2)
    ]


@dataclass(frozen=True)
class Ran:
    folder: Path
    models: Models
    results: Results


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    torch.set_num_threads(1)
    folder, models = tmp_path_factory.mktemp("bench"), tiny_models()
    return Ran(folder, models, run(models, PLAN, tiny_prompts(), folder))
