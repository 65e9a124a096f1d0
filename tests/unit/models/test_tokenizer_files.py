"""Tokenizer files: ids, text and special tokens are those of transformers, which isn't imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Fast

from taslak.errors import CheckpointError
from taslak.models.tokenizer import Tokenizer
from taslak.models.tokenizer_files import TokenizerFiles, read_tokenizer

TEXTS = (
    "",
    "a",
    " ab  c ,d . don't",
    "<s>ab</s> c",
    "ab <x> c<x>d  <y>e",
    "a <mask> b<z>c <extra>",
    "é\n\n日本 \U0001f600",
)
Build = Callable[[], Fast]


def _byte_level(prefix: bool = False) -> Fast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate(["<s>", "</s>", *letters, "ab", "Ġa"])}
    fast = Fast(models.BPE(vocabulary, [("a", "b"), ("Ġ", "a")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    fast.decoder = decoders.ByteLevel()
    fast.post_processor = processors.ByteLevel(trim_offsets=False)
    return fast


def _with_prefix_space() -> Fast:
    return _byte_level(prefix=True)


def _sentencepiece() -> Fast:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcde,.", "▁a", "ab"]
    vocabulary = {token: id for id, token in enumerate(pieces)}
    bpe = models.BPE(
        vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    fast = Fast(bpe)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return fast


def _metaspace() -> Fast:
    fast = _sentencepiece()
    fast.normalizer = None
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fast.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return fast


def _word_piece() -> Fast:
    words = ["[UNK]", "a", "b", "ab", "##b", "##c", "c", "d", ",", ".", "don", "'", "t", "n", "<s>"]
    fast = Fast(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(cleanup=False)
    return fast


def _cut_and_padded() -> Fast:
    fast = _sentencepiece()
    fast.enable_truncation(4)
    fast.enable_padding(length=16, pad_id=0, pad_token="<unk>")
    return fast


def _added(content: str, **properties: bool) -> dict[str, Any]:
    usual = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}
    return usual | {"content": content} | properties


BOS_EOS = {"bos_token": "<s>", "eos_token": "</s>"}
CASES: dict[str, tuple[Build, dict[str, Any]]] = {
    "nothing beside tokenizer.json": (_sentencepiece, {}),
    "names": (_byte_level, {"tokenizer_config": BOS_EOS}),
    "a prefix space": (_with_prefix_space, {"tokenizer_config": BOS_EOS | {"add_prefix_space": True}}),
    "a prefix space only in the configuration": (
        _byte_level,
        {"tokenizer_config": BOS_EOS | {"add_prefix_space": True}},
    ),
    "bos by the post-processor": (_sentencepiece, {"tokenizer_config": BOS_EOS}),
    "add_bos_token beside it": (
        _sentencepiece,
        {"tokenizer_config": BOS_EOS | {"add_bos_token": False, "add_eos_token": True}},
    ),
    "metaspace": (_metaspace, {"tokenizer_config": BOS_EOS}),
    "clean-up": (_word_piece, {"tokenizer_config": {"clean_up_tokenization_spaces": True}}),
    "truncation and padding": (_cut_and_padded, {"tokenizer_config": BOS_EOS | {"pad_token": "<unk>"}}),
    "special tokens split": (_sentencepiece, {"tokenizer_config": BOS_EOS | {"split_special_tokens": True}}),
    "named tokens that are not in the vocabulary": (
        _sentencepiece,
        {"tokenizer_config": BOS_EOS | {"mask_token": "<mask>", "pad_token": "<z>", "image_token": "<y>"}},
    ),
    "properties of a named token": (
        _sentencepiece,
        {
            "tokenizer_config": BOS_EOS
            | {"mask_token": {"__type": "AddedToken"} | _added("<mask>", lstrip=True)}
        },
    ),
    "added tokens in the configuration": (
        _sentencepiece,
        {
            "tokenizer_config": BOS_EOS
            | {
                "added_tokens_decoder": {
                    "1": _added("<s>", special=True),
                    "270": _added("<x>", lstrip=True, special=True),
                    "269": _added("<y>", rstrip=True),
                    "271": _added("<z>", normalized=True),
                },
                "mask_token": "<x>",
                "additional_special_tokens": ["<extra>"],
            }
        },
    ),
    "extra tokens in a list": (
        _byte_level,
        {"tokenizer_config": BOS_EOS | {"extra_special_tokens": ["<x>", "<extra>"]}},
    ),
    "extra tokens with names": (
        _byte_level,
        {"tokenizer_config": BOS_EOS | {"extra_special_tokens": {"image_token": "<x>"}}},
    ),
    "older files": (
        _sentencepiece,
        {
            "tokenizer_config": {"bos_token": "</s>"},
            "special_tokens_map": BOS_EOS
            | {
                "pad_token": {"content": "<y>", "lstrip": False, "rstrip": True, "normalized": False},
                "additional_special_tokens": ["<extra>"],
            },
            "added_tokens": {"<x>": 269, "<y>": 268, "<z>": 270},
        },
    ),
}


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    build, files = CASES[request.param]
    build().save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_tokenizers_are_those_of_transformers(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    ours = Tokenizer.from_folder(folder)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special=special) == ids, (text, special)
            for skip in (True, False):
                plain = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special=skip) == plain, (text, special, skip)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    assert ours._files.names == theirs.special_tokens_map


def test_without_tokenizer_json_transformers_converts_it(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    vocabulary = json.loads(_byte_level().to_str())["model"]["vocab"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    config = BOS_EOS | {"tokenizer_class": "GPT2Tokenizer", "unk_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    ours = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert ours.bos_id == theirs.bos_token_id


def test_reading_does_not_import_transformers(tmp_path: Path) -> None:
    _sentencepiece().save(str(tmp_path / "tokenizer.json"))
    code = (
        "import sys; from taslak.models.tokenizer import Tokenizer\n"
        f"print(Tokenizer.from_folder({str(tmp_path)!r}).encode('ab'), 'transformers' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split()[-1] == "False"


def test_a_broken_property_is_named(tmp_path: Path) -> None:
    _byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"added_tokens_decoder": {"x": {"content": "<x>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"cannot read the tokenizer in .*'x'"):
        Tokenizer.from_folder(tmp_path).encode("a")


def test_folders_that_spell_the_same_share_what_is_read(tmp_path: Path) -> None:
    def written(name: str, **config: Any) -> TokenizerFiles:
        folder = tmp_path / name
        folder.mkdir()
        _byte_level().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **config}))
        return read_tokenizer(folder)

    first = written("first", chat_template="a")
    second = written("second", chat_template="b")
    assert second.fast is first.fast
    assert (first.template, second.template) == ("a", "b")
    for name, config in {
        "splits": {"split_special_tokens": True},
        "named": {"eos_token": "<end>"},
        "further": {"extra_special_tokens": ["<tool>"]},
    }.items():
        assert written(name, **config).fast is not first.fast, name
