"""Tokenizers rebuilt from GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Fast
from tokenizers import models

from taslak.errors import CheckpointError
from taslak.models.loading.converted import convert
from taslak.models.loading.gguf import GGUFModel
from taslak.models.loading.gguf_tokenizer import PRE_TOKENIZERS, GGUFTokenizer, _quickly_read
from taslak.models.tokenizer import Tokenizer
from tests.unit.models.loading.builders import byte_level_vocabulary

Build = Callable[..., Any]
TEXTS = (
    "",
    "hello world 1234",
    "  two  spaces\n\n\ttab\r\n",
    " leading and trailing ",
    "3.14, 12345678 and ٣",
    "emoji 😀👩‍👩‍👧 🇹🇷",
    "çğıöşü ÇĞİÖŞÜ, Türkçe'de TASLAĞI",
    "def f(x):\n    return x ** 2  # naïve\n",
    "It's what they'LL say: 日本語",
    "<|im_start|>user\nhello<|im_end|>\n<tool>x",
)


def byte_level(**changes: Any) -> dict[str, Any]:
    tokens, merges, types = byte_level_vocabulary()
    entries = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": merges}
    return entries | {"eos_token_id": tokens.index("<|im_end|>")} | changes


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A vocabulary as SentencePiece makes it: specials, bytes, then pieces with falling scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "ll"]
    letters = sorted({letter for piece in pieces for letter in piece} | set("abcdefgxyz0123."))
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces) + len(letters))]
    tokens += pieces + letters
    types += [1] * (len(pieces) + len(letters))
    entries = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    return entries | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | changes


def tokenizer_of(write_gguf: Build, tiny: Build, entries: dict[str, Any], **options: Any) -> Tokenizer:
    model = tiny(vocab_size=len(entries["tokens"]))
    return Tokenizer.from_folder(convert(write_gguf(model, tokenizer=entries, **options), torch.float32))


@pytest.mark.parametrize("pre", [*PRE_TOKENIZERS, "default", None])
def test_byte_level_text_comes_back_as_it_was(write_gguf: Build, tiny: Build, pre: str | None) -> None:
    tokenizer = tokenizer_of(write_gguf, tiny, byte_level(pre=pre))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_byte_level_ids_are_those_of_transformers(
    write_gguf: Build, tiny: Build, pre: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    ours = tokenizer_of(write_gguf, tiny, byte_level(pre=pre, add_bos_token=False))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_merges_and_digit_rules_are_applied(write_gguf: Build, tiny: Build) -> None:
    entries = byte_level()
    tokens = entries["tokens"]
    whole = tokenizer_of(write_gguf, tiny, entries).encode("hello 12")
    assert [tokens[id] for id in whole] == ["hello", "Ġ", "12"]
    single = tokenizer_of(write_gguf, tiny, byte_level(pre="smollm")).encode("hello 12")
    assert [tokens[id] for id in single] == ["hello", "Ġ", "1", "2"]


def test_the_default_rule_depends_on_the_architecture(write_gguf: Build, tiny: Build) -> None:
    entries = byte_level(pre="default")
    path = write_gguf(tiny("qwen2"), tokenizer=entries)
    tokenizer = GGUFTokenizer(GGUFModel(path)).tokenizer
    assert [entries["tokens"][id] for id in tokenizer.encode("12").ids] == ["1", "2"]


def test_only_llama_3_takes_words_that_merges_do_not_build(write_gguf: Build, tiny: Build) -> None:
    entries = byte_level(merges=["h e"])
    tokens = entries["tokens"]
    for rule, whole in (("llama-bpe", True), ("dbrx", False), ("smollm", False)):
        tokenizer = tokenizer_of(write_gguf, tiny, {**entries, "pre": rule})
        spelled = [tokens[id] for id in tokenizer.encode("hello", add_special=False)]
        assert spelled == (["hello"] if whole else ["he", "l", "l", "o"])


def test_special_and_padding_tokens(write_gguf: Build, tiny: Build) -> None:
    entries = byte_level()
    tokenizer = tokenizer_of(write_gguf, tiny, entries)
    tokens = entries["tokens"]
    ids = tokenizer.encode("<|im_start|>hello<tool><|im_end|>")
    assert [tokens[id] for id in ids] == ["<|im_start|>", "hello", "<tool>", "<|im_end|>"]
    assert tokenizer.decode(ids) == "hello<tool>"
    assert tokenizer.vocab_size == len(tokens) - 2
    assert len(tokenizer.encode("[PAD0]")) > 1


def test_ends_are_the_files_and_those_of_chat_turns(write_gguf: Build, tiny: Build) -> None:
    entries = byte_level()
    tokens = entries["tokens"]
    path = write_gguf(tiny(), tokenizer=entries | {"eos_token_id": 3, "eot_token_id": 4})
    ends = GGUFTokenizer(GGUFModel(path)).eos_ids
    assert ends == (3, 4, tokens.index("<|im_end|>"), tokens.index("<|endoftext|>"))


@pytest.mark.parametrize(("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)])
def test_bos_and_eos_are_put_where_the_file_says(
    write_gguf: Build, tiny: Build, bos: bool, eos: bool
) -> None:
    entries = byte_level(bos_token_id=0, eos_token_id=1, add_bos_token=bos, add_eos_token=eos)
    tokenizer = tokenizer_of(write_gguf, tiny, entries)
    body = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello") == [0] * bos + body + [1] * eos


def test_a_chat_template_is_kept(write_gguf: Build, tiny: Build) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    settings = {"tokenizer.chat_template": template}
    tokenizer = tokenizer_of(write_gguf, tiny, byte_level(), settings=settings)
    assert tokenizer.has_chat_template
    ids = tokenizer.chat([{"role": "user", "content": "hello"}])
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"


def test_sentencepiece(write_gguf: Build, tiny: Build) -> None:
    entries = sentencepiece()
    tokenizer = tokenizer_of(write_gguf, tiny, entries)
    assert [entries["tokens"][id] for id in tokenizer.encode("hello world")] == ["<s>", "▁hello", "▁world"]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_ids_are_those_of_transformers(write_gguf: Build, tiny: Build, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = tokenizer_of(write_gguf, tiny, sentencepiece())
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for text in TEXTS:
        # Before a space, transformers' GGUF reader leaves out the space that SentencePiece always puts first.
        if not text.startswith(" "):
            assert ours.encode(text) == theirs.encode(text), text


def test_sentencepiece_without_the_leading_space(write_gguf: Build, tiny: Build) -> None:
    tokenizer = tokenizer_of(write_gguf, tiny, sentencepiece(add_space_prefix=False, add_bos_token=False))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("hello") != tokenizer.encode(" hello")


def test_what_is_not_supported_is_named(write_gguf: Build, tiny: Build) -> None:
    def refused(entries: dict[str, Any]) -> str:
        with pytest.raises(CheckpointError) as caught:
            GGUFTokenizer(GGUFModel(write_gguf(tiny(), tokenizer=entries)))
        return str(caught.value)

    assert "rule 'tekken' (tokenizer.ggml.pre); supported are: gpt-2, olmo, smollm" in refused(
        byte_level(pre="tekken")
    )
    assert "kind 'bert'; supported are: gpt2, llama" in refused(byte_level(model="bert"))
    assert "holds no tokenizer" in refused({})


@pytest.mark.parametrize(("parts", "spelled"), [(("a", "b"), "a b"), ((" ", "b"), [" ", "b"])], ids=str)
def test_merges_are_written_in_the_form_that_is_read_fastest(parts: tuple[str, str], spelled: Any) -> None:
    """Unless a part holds a space, which that form could not tell from the one between the parts."""
    words = {word: id for id, word in enumerate([*parts, "".join(parts)])}
    made = Fast(models.BPE(words, [parts]))
    text = _quickly_read(made)
    assert json.loads(text)["model"]["merges"] == [spelled]
    assert Fast.from_str(text).encode("".join(parts)).ids == made.encode("".join(parts)).ids == [2]
