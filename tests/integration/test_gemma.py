"""Gemma 3 270M from its GGUF: transformers' logits, llama.cpp's tokens, the same text with every drafter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import taslak
from taslak.models.loading import resolve
from taslak.models.target import chain_rows
from taslak.models.tokenizer import Tokenizer

pytestmark = pytest.mark.integration

GEMMA = "gemma-3-270m"
LINES = "\n".join(
    f"{i}: the {i * 7 % 13}th bell rang {i * 3 % 5} times, and nobody counted." for i in range(40)
)
"""Longer than its window of 512 tokens."""

LLAMA_CPP = {
    "Hello world": [2, 9259, 1902],
    " two  spaces": [2, 1156, 138, 35220],
    "a\n\nb\n\n\nc\td": [2, 236746, 108, 236763, 109, 236755, 255968, 236753],
    "emoji \U0001f600\U0001f469\u200d\U0001f467": [2, 67906, 163543, 243767, 237243, 244814],
    "1234 3.14": [2, 236770, 236778, 236800, 236812, 236743, 236800, 236761, 236770, 236812],
    "    return x+1": [2, 140, 2060, 1123, 236862, 236770],
}
"""What llama.cpp makes of some texts with this file."""


def test_its_tokens_are_those_of_llama_cpp() -> None:
    tokenizer = Tokenizer.from_folder(resolve(GEMMA, dtype=torch.float32))
    assert tokenizer.bos_id == 2
    for text, ids in LLAMA_CPP.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_its_logits_are_those_of_transformers_past_the_window() -> None:
    import transformers

    folder = resolve(GEMMA, dtype=torch.float32)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(reference) is transformers.Gemma3ForCausalLM
    model = taslak.load(GEMMA, dtype="float32")
    ids = model.encode(LINES)
    assert len(ids) > 600
    cache = model.target.allocate(len(ids))
    logits = model.target.forward([chain_rows(cache, ids, len(ids))]).logits
    cache.release()
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, :, : logits.shape[1]]
        after = reference.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :]
    assert (logits - expected).abs().max() < 1e-3  # of logits up to 30, in float32 on both sides
    answer = model.generate(LINES, max_tokens=24, speculate=False)
    assert list(answer.ids) == after.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [("ngram", {}), ("suffix", {}), ("early-exit", {}), ("auto", {}), ("auto", {"temperature": 0.8})],
    ids=["ngram", "suffix", "early-exit", "auto", "sampled"],
)
def test_every_drafter_that_fits_gives_its_text(method: str, options: dict[str, Any]) -> None:
    """On the native kernels, in the file's own width, past the window."""
    exit_layer = {"exit_layer": 6} if method == "early-exit" else {}
    model = taslak.load(GEMMA, method=method, gamma=4, **exit_layer)
    assert model.target.width_invariant
    asked = {"max_tokens": 40, "seed": 5, **options}
    plain = model.generate(LINES, speculate=False, **asked)
    drafted = model.generate(LINES, **asked)
    assert drafted.ids == plain.ids
    assert drafted.counts.drafted > 0
    assert drafted.dropped == 0
