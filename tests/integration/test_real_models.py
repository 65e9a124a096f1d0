"""Real models in float32: speculative text is plain text; in the reference mode bit for bit, else up to
near-ties. `test_widths.py` does the same on the native kernels."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import taslak
from taslak.engine import LanguageModel
from taslak.engine.compare import first_difference
from taslak.models.target import chain_rows

pytestmark = pytest.mark.integration

DEFAULT = "smollm2-135m-instruct"
QWEN, QWEN_DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
EDIT = (
    "Rename the function `total` to `sum_of_squares` and give the whole file back:\n\n"
    "def total(values):\n    result = 0\n    for value in values:\n        result += value * value\n"
    "    return result\n\n\nprint(total([1, 2, 3]))\nprint(total([4, 5, 6]))\n"
)
SAMPLED = {"temperature": 0.8, "seed": 11}
TOKENS = {DEFAULT: 64, QWEN: 32}

Setting = tuple[str, str | None, str, int]
SETTINGS: dict[str, Setting] = {
    "135M-ngram": (DEFAULT, None, "ngram", 5),
    "135M-suffix": (DEFAULT, None, "suffix", 8),
    "qwen-pair": (QWEN, QWEN_DRAFT, "draft-model", 4),
}


@pytest.fixture(scope="module", params=["exact", "quick"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=SETTINGS)
def model(request: pytest.FixtureRequest, mode: str) -> LanguageModel:
    name, draft, method, gamma = SETTINGS[request.param]
    return taslak.load(name, draft=draft, method=method, gamma=gamma, dtype="float32", exact=mode == "exact")


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_speculative_text_is_plain_text(model: LanguageModel, options: dict[str, Any]) -> None:
    options = {"max_tokens": TOKENS[model.name], "seed": 11, **options}
    plain = model.generate(EDIT, speculate=False, **options)
    drafted = model.generate(EDIT, **options)
    assert plain.counts.drafted == 0
    assert drafted.counts.drafted > 0
    assert drafted.dropped == 0
    difference = first_difference(model.target, model.requests(EDIT, **options)[0], plain, drafted)
    if model.target.width_invariant:
        assert difference is None
        assert drafted.text == plain.text
    elif difference is not None:
        warnings.warn(f"a near-tie: {difference}", stacklevel=1)
        assert difference.near_tie, difference
    if not options.get("temperature"):
        assert drafted.counts.passes < plain.counts.passes, "an edit repeats its prompt: drafts must pay here"


def test_logits_of_the_default_model_agree_with_transformers() -> None:
    import transformers

    from taslak.models.loading import resolve

    model = taslak.load(DEFAULT, dtype="float32")
    # in float64, so that the difference is our rounding alone, not transformers' as well
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        resolve(DEFAULT, dtype=torch.float32), dtype=torch.float64
    )
    ids = model.encode(EDIT)
    cache = model.target.allocate(len(ids))
    logits = model.target.forward([chain_rows(cache, ids, len(ids))]).logits
    cache.release()
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, :, : logits.shape[1]]
    assert (logits - expected).abs().max() < 1e-4
    assert (logits.argmax(-1) == expected.argmax(-1)).all()


def test_many_prompts_share_passes_and_answer_as_alone() -> None:
    model = taslak.load(DEFAULT, exact=True)
    prompts = ["Say hello.", EDIT, "Count from one to ten."]
    together = model.generate(prompts, max_tokens=16)
    assert [a.ids for a in together] == [model.generate(p, max_tokens=16).ids for p in prompts]


def test_the_stream_is_the_text() -> None:
    model = taslak.load(DEFAULT)
    events = list(model.stream("Write a haiku about rain.", max_tokens=24))
    assert events[-1].answer is not None
    assert "".join(event.text for event in events) == events[-1].answer.text
    assert all(event.answer is None for event in events[:-1])
    assert model.target.pool.free_pages == model.target.pool.pages
