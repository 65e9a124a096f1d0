"""The packs' tokenizers and chat templates: ids and text are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taslak.models.loading import resolve
from taslak.models.tokenizer import Tokenizer

pytestmark = pytest.mark.integration

PACKS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
TEXTS = (
    "def f(x):\n\treturn  x + 1.50e-3  # don't\r\n\n\n",
    "  <|im_start|>user\nhi<|im_end|> <|endoftext|>x<|fim_prefix|><repo_name>",
    "Ünïcode e\u0301 ﬁ 日本語 \U0001f468\u200d\U0001f469\u200d\U0001f467 １２３ Ⅻ\u00a0\u3000end",
    "\x00\x7f\ufeff\u2028a",
    "x" * 3000 + " " * 300,
)
CHATS = (
    [{"role": "user", "content": " Hello <|im_end|> {{ 1 }} "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ],
)


@pytest.fixture(scope="module", params=PACKS)
def folder(request: pytest.FixtureRequest) -> Path:
    return resolve(request.param, dtype=torch.bfloat16)


def test_packs_tokenizers_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    ours = Tokenizer.from_folder(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special=special) == ids
            for skip in (True, False):
                plain = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special=skip) == plain
    for chat in CHATS:
        for prompt in (True, False):
            ids = theirs.apply_chat_template(chat, add_generation_prompt=prompt, return_dict=False)
            assert ours.chat(chat, add_generation_prompt=prompt) == ids
    assert ours.bos_id == theirs.bos_token_id
    assert theirs.eos_token_id in ours.eos_ids
    vocabulary = {int(id): str(token) for token, id in theirs.get_vocab().items()}
    assert ours.vocab_size == max(id for id, token in vocabulary.items() if not token.startswith("[PAD")) + 1
