"""Real models in narrow weights, on the native kernels: speculative text is plain text, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import taslak
from taslak import native
from taslak.models.loading import find_pack, packs
from taslak.models.loading.remembered import gguf_dtype
from taslak.models.pretrained import load_pretrained
from taslak.models.target import chain_rows
from tests.integration.test_real_models import DEFAULT, EDIT, QWEN, QWEN_DRAFT, SAMPLED

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not native.available(), reason="needs the native kernels"),
]


TOKENS, PAIR_TOKENS = 256, 128


@pytest.fixture(scope="module", params=["bfloat16", "int8", "int4"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_default_model_with_look_up(dtype: str, method: str, options: dict[str, Any]) -> None:
    model = taslak.load(DEFAULT, method=method, dtype=dtype)
    assert (model.weights.dtype, model.weights.path) == (dtype, "native")
    assert_identical(model, **options)


@pytest.fixture(scope="module", params=["int8", "int4"])
def pair(request: pytest.FixtureRequest) -> taslak.LanguageModel:
    model = taslak.load(QWEN, draft=QWEN_DRAFT, dtype=request.param, draft_dtype=request.param, gamma=4)
    assert model.draft_weights is not None
    assert model.weights.dtype == model.draft_weights.dtype == request.param
    return model


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_qwen_pair(pair: taslak.LanguageModel, options: dict[str, Any]) -> None:
    assert_identical(pair, PAIR_TOKENS, **options)


def assert_identical(model: taslak.LanguageModel, tokens: int = TOKENS, **options: Any) -> None:
    options = {"max_tokens": tokens, "eos": None, **options}
    plain = model.generate(EDIT, speculate=False, **options)
    drafted = model.generate(EDIT, **options)
    assert drafted.ids == plain.ids
    assert len(plain.ids) == tokens
    assert drafted.counts.accepted > 0
    assert drafted.counts.passes < plain.counts.passes


def test_int4_is_the_files_own_weights() -> None:
    """Only activations and K/V are narrower than in float32."""
    wide, narrow = load_pretrained(DEFAULT, dtype="float32"), load_pretrained(DEFAULT, dtype="auto")
    assert narrow.dtype == "int4"
    ids = wide.tokenizer.encode(EDIT)
    logits = [
        model.decoder.forward([chain_rows(model.decoder.allocate(len(ids)), ids, len(ids))]).logits
        for model in (wide, narrow)
    ]
    # the first tokens' attention sinks make their logits uncertain in every precision
    p, q = (torch.log_softmax(each[8:], -1) for each in logits)
    assert (p.exp() * (p - q)).sum(-1).mean() < 0.02
    assert (p.argmax(-1) == q.argmax(-1)).double().mean() > 0.9


@pytest.mark.parametrize("name", [name for name, pack in packs().items() if pack.is_here])
def test_a_packs_width_is_its_files(name: str) -> None:
    pack = find_pack(name)
    assert pack is not None
    assert pack.dtype == gguf_dtype(pack.path)
