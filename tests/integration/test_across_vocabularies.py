"""SmolLM2 drafts for models with other tokenizers, on the native kernels: the text is plain text (C22)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import taslak
from taslak import native
from taslak.drafters.translation import Translation
from taslak.drafters.vocabularies import vocabularies
from taslak.engine import LanguageModel
from taslak.errors import CheckpointError, TokenizerMismatch
from taslak.models.loading import resolve
from taslak.models.pretrained import Pretrained, load_pretrained
from taslak.models.tokenizer import Tokenizer
from tests.integration.test_real_models import DEFAULT, EDIT, QWEN, QWEN_DRAFT, SAMPLED

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not native.available(), reason="needs the native kernels"),
]

GEMMA = "gemma-3-270m"
ANYTHING = (
    "  Translate:\r\n\r\n\t\u201cThe ship\u2019s bell\u201d \u2014 e\u0301 \u65e5\u672c\u8a9e "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600, 12345\n"
)
"""Leading spaces, both kinds of line end, quotes, a combining mark, and emoji of several tokens."""


@pytest.fixture(scope="module", params=[QWEN, GEMMA])
def target(request: pytest.FixtureRequest) -> Pretrained:
    """In the file's own 4-bit weights; where the decoder has its family."""
    try:
        return load_pretrained(request.param, share=0.5)
    except CheckpointError as error:
        if "is not supported" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def draft() -> Pretrained:
    return load_pretrained(DEFAULT, share=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_c22_text_is_plain_text(target: Pretrained, draft: Pretrained, options: dict[str, Any]) -> None:
    ways = ("tli", "slem", "cross-vocab")
    models = {way: LanguageModel(target, draft, method=way, gamma=4) for way in ways}
    for prompt, tokens in ((EDIT, 40), (ANYTHING, 20)):
        asked = {"max_tokens": tokens, "eos": None, **options}
        plain = models["tli"].generate(prompt, speculate=False, **asked)
        for way, model in models.items():
            assert (model.weights.dtype, model.weights.path) == ("int4", "native")
            drafted = model.generate(prompt, **asked)
            assert drafted.ids == plain.ids, way
            assert drafted.counts.drafted > 0
            assert drafted.dropped == 0
            if prompt is EDIT:
                assert drafted.counts.accepted > 0
                assert drafted.counts.passes < plain.counts.passes


@pytest.mark.parametrize(
    "pair", [(QWEN_DRAFT, DEFAULT), (DEFAULT, QWEN_DRAFT)], ids=["for qwen", "for smollm2"]
)
def test_c22_the_draft_model_reads_the_chat_it_knows(pair: tuple[str, str]) -> None:
    """Both write turns as ChatML: markers are read as markers, and text as its own tokenizer cuts it."""
    target, draft = (Tokenizer.from_folder(resolve(name, dtype=torch.bfloat16)) for name in pair)
    translation = Translation(vocabularies(target, draft, target.vocab_size, draft.vocab_size))
    translation.follow(target.chat([{"role": "user", "content": ANYTHING.strip()}]))
    written = target.decode(target.chat([{"role": "user", "content": ANYTHING.strip()}]), skip_special=False)
    assert translation.ids == draft.encode(written, add_special=False)


def test_c21_without_being_asked_it_is_an_error() -> None:
    with pytest.raises(TokenizerMismatch) as error:
        taslak.load(QWEN_DRAFT, draft=DEFAULT)
    for word in (QWEN_DRAFT, DEFAULT, "the id 0 is '!'", "'<|endoftext|>'", "--cross-vocab"):
        assert word in str(error.value)
