"""A real model in transformers, wrapped: the text of its own `generate`, drafted for by a look-up, by
the same model as taslak loads it, and by its EAGLE head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from taslak import LanguageModel, from_transformers
from taslak.engine.compare import first_difference
from taslak.models.loading import DEFAULT_PACK, resolve

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EDIT = (
    "Rename the function `total` to `sum_of_squares` and give the whole file back:\n\n"
    "def total(values):\n    result = 0\n    for value in values:\n        result += value * value\n"
    "    return result\n"
)
TOKENS = 48


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve(DEFAULT_PACK, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def own_text(loaded: tuple[Any, Any], prompt: list[int]) -> tuple[int, ...]:
    model, _ = loaded
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"method": "suffix", "gamma": 6},
        {"method": "draft-model", "draft": DEFAULT_PACK, "gamma": 4, "branch": 2},
        {"method": "eagle", "draft": f"{DEFAULT_PACK}-eagle", "gamma": 4, "branch": 3},
    ],
    ids=["suffix", "draft-model", "eagle"],
)
def test_the_text_is_that_of_its_own_generate(loaded: tuple[Any, Any], options: dict[str, Any]) -> None:
    wrapped: LanguageModel = from_transformers(*loaded, **options)
    request = wrapped.requests(EDIT, max_tokens=TOKENS)[0]
    assert request.prompt == loaded[1].apply_chat_template(
        [{"role": "user", "content": EDIT}], add_generation_prompt=True, return_dict=False
    )
    expected = own_text(loaded, list(request.prompt))
    answer = wrapped.generate(EDIT, max_tokens=TOKENS)
    assert answer.counts.acceptance_rate is not None
    assert answer.counts.acceptance_rate > (0.9 if options["method"] == "draft-model" else 0.1)
    assert answer.dropped == 0
    if answer.ids != expected:  # rounding, in float32 rare
        plain = wrapped.generate(EDIT, max_tokens=TOKENS, speculate=False)
        assert plain.ids == expected
        difference = first_difference(wrapped.target, request, plain, answer)
        assert difference is not None
        assert difference.near_tie
