"""The default model with the heads that come with it: the text is plain text, and drafts are often right."""

from __future__ import annotations

from typing import Any

import pytest

import taslak

pytestmark = pytest.mark.integration

PROMPTS = (
    "Write a Python function that counts the vowels of a word.",
    "A shop sells pens at 3 dollars each. How much do 12 pens cost? Explain.",
    "Tell me a short story about a lighthouse.",
)


def test_the_default_model_drafts_with_its_own_head() -> None:
    model = taslak.load()
    assert (model.method, model.draft_name) == ("suffix+eagle", "smollm2-135m-instruct-eagle")
    assert model.gamma is None, "chosen as it pays"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("method", "least"), [("eagle", 1.4), ("medusa", 1.2), ("early-exit", 1.2)])
def test_the_text_is_plain_text(method: str, least: float, options: dict[str, Any]) -> None:
    model = taslak.load(method=method, control=False)
    tokens = passes = 0
    for prompt in PROMPTS:
        comparison = model.compare(prompt, max_tokens=256, **options)
        assert comparison.identical
        assert comparison.speculative.dropped == 0
        tokens += len(comparison.speculative.ids)
        passes += comparison.speculative.counts.passes
    if not options:
        assert tokens / passes > least
