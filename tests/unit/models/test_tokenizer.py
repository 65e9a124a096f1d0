"""The tokenizer wrapper: ids that end a text, vocabularies that do and don't agree."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from taslak.errors import CheckpointError, OptionError, TokenizerMismatch
from taslak.models.tokenizer import Difference, Tokenizer

WORDS = ("a", "b", "c", "d", "ab")
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('no odd roles') }}{% endif %}"
    "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
Make = Callable[..., Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A tokenizer of a few words, with special tokens behind them and files as given."""

    def build(
        name: str = "model",
        words: tuple[str, ...] = WORDS,
        special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"),
        **files: dict[str, Any],
    ) -> Tokenizer:
        folder = tmp_path / name
        folder.mkdir()
        merges = [("a", "b")] if "ab" in words else []
        fast = Fast(models.BPE({word: id for id, word in enumerate(words)}, merges))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        fast.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **files.pop("tokenizer_config", {})}
        for file, content in (files | {"tokenizer_config": config}).items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return Tokenizer.from_folder(folder)

    return build


def test_importing_it_does_not_import_transformers() -> None:
    code = "import sys, taslak.models.tokenizer; print('transformers' in sys.modules, 'torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split()[0] == "False"


def test_text_to_ids_and_back(make: Make) -> None:
    tokenizer = make()
    assert tokenizer.name == "model"
    assert tokenizer.encode("abcd") == [4, 2, 3]
    assert tokenizer.encode("<|im_start|>ab<|im_end|>") == [5, 4, 6]
    assert tokenizer.decode([5, 4, 6]) == "ab"
    assert tokenizer.decode([5, 4, 6], skip_special=False) == "<|im_start|>ab<|im_end|>"
    assert tokenizer.decode([]) == ""
    assert tokenizer.vocab_size == 7
    assert tokenizer.bos_id is None


def test_chat(make: Make) -> None:
    tokenizer = make(tokenizer_config={"chat_template": TEMPLATE, "bos_token": "<|im_start|>"})
    messages = [{"role": "user", "content": "ab"}]
    assert tokenizer.has_chat_template
    assert tokenizer.bos_id == 5
    assert tokenizer.chat(messages) == [5, 4, 6, 5]
    assert tokenizer.chat(messages, add_generation_prompt=False) == [5, 4, 6]
    with pytest.raises(OptionError, match=r"chat template of model refuses these messages: no odd roles"):
        tokenizer.chat([{"role": "odd", "content": "ab"}])


def test_a_chat_template_in_a_file_of_its_own(make: Make, tmp_path: Path) -> None:
    tokenizer = make()
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    assert tokenizer.chat([{"role": "user", "content": "ab"}]) == [5, 4, 6, 5]


def test_a_base_model_has_no_chat(make: Make) -> None:
    tokenizer = make()
    assert not tokenizer.has_chat_template
    with pytest.raises(OptionError, match="model has no chat template"):
        tokenizer.chat([{"role": "user", "content": "ab"}])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": None}}, ()),
        ({"config": {"eos_token_id": 3}}, (3,)),
        ({"config": {"eos_token_id": [3, 1]}}, (3, 1)),
        ({"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": [2, 1, 2]}}, (2, 1)),
        ({"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": 0}}, (0,)),
        ({"config": {"eos_token_id": 3}, "generation_config": {}}, (3,)),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, (6,)),
        ({"config": {"eos_token_id": 3}, "tokenizer_config": {"eos_token": "<|im_end|>"}}, (3, 6)),
        ({"config": {"eos_token_id": 6}, "tokenizer_config": {"eos_token": "<|im_end|>"}}, (6,)),
    ],
)
def test_c04_eos_is_none_one_or_several(make: Make, files: Any, expected: tuple[int, ...]) -> None:
    assert make(**files).eos_ids == expected


def test_c20_vocabularies_that_differ_in_padding_agree(make: Make) -> None:
    small = make("small")
    big = make("big", special=("<|im_start|>", "<|im_end|>", "[PAD7]", "<unused3>", "<|extra_4|>"))
    assert big.vocab_size > small.vocab_size
    assert small.first_difference(big) is None
    assert big.first_difference(small) is None
    small.require_same_as(big)
    big.require_same_as(small)


def test_c21_the_first_difference_is_named(make: Make) -> None:
    target = make("target")
    draft = make("draft", words=("a", "b", "d", "c", "ab"))
    assert target.first_difference(target) is None
    assert target.first_difference(draft) == Difference(2, "c", "d")
    with pytest.raises(
        TokenizerMismatch,
        match=r"target and draft differ: the id 2 is 'c' in target and 'd' in draft\. .* \(.*--cross-vocab\)",
    ):
        target.require_same_as(draft)


def test_c21_a_token_that_only_one_has_is_a_difference(make: Make) -> None:
    target, draft = make("target"), make("draft", special=("<|im_start|>", "<|im_end|>", "<tool>"))
    assert target.first_difference(draft) == Difference(7, None, "<tool>")
    with pytest.raises(TokenizerMismatch, match=r"the id 7 is no token in target and '<tool>' in draft"):
        target.require_same_as(draft)


def test_padding_in_place_of_a_real_token_is_a_difference(make: Make) -> None:
    target = make("target")
    draft = make("draft", special=("<|im_start|>", "[PAD6]"))
    assert target.first_difference(draft) == Difference(6, "<|im_end|>", "[PAD6]")


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="cannot read the tokenizer in"):
        Tokenizer.from_folder(tmp_path).encode("a")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot read the tokenizer in"):
        Tokenizer.from_folder(tmp_path).encode("a")
