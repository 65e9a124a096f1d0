"""Small tokenizers of the kinds that real models have, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Fast

from taslak.models.tokenizer import Tokenizer

_HOME = TemporaryDirectory()

TEXTS = (
    "def mean(values):\r\n    total = 0\n    for value in values:\n        total += value\n\nreturn total",
    "The harbour lay quiet in the early morning.  Boats came back, one after the other; and on the quay",
    "Ünïcode e\u0301 日本語 \U0001f600\U0001f468\u200d\U0001f469 12345 … don't",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def as_tokenizer(fast: Fast, name: str, **config: Any) -> Tokenizer:
    """Written to a folder and read back, as a model's is. config: of tokenizer_config.json."""
    folder = Path(_HOME.name) / name
    folder.mkdir(exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


def as_fast(words: Sequence[str], special: Sequence[str] = ()) -> Fast:
    """Of whole words and no merges, special tokens behind them."""
    fast = Fast(models.BPE({word: id for id, word in enumerate(words)}, []))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return fast


@cache
def byte_level(size: int = 400, texts: tuple[str, ...] = TEXTS, nfc: bool = False) -> Tokenizer:
    """GPT-2's kind: BPE over bytes, any of which is a token. nfc: it rewrites text, as Qwen's does."""
    fast = Fast(models.BPE())
    if nfc:
        fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    fast.train_from_iterator(texts, trainer)
    return as_tokenizer(
        fast, f"byte-level-{size}-{nfc}-{hash(texts)}", eos_token="<|im_end|>", chat_template=CHATML
    )


@cache
def sentence_piece(size: int = 400, texts: tuple[str, ...] = TEXTS, *, dummy: bool = False) -> Tokenizer:
    """SentencePiece's kind: BPE over characters, ▁ for a space, bytes where a character is unknown, <bos>
    before every text. dummy: a space in front of text as well, as Llama 2 has it."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    learnt = Fast(models.BPE(unk_token="<unk>"))
    replaced = normalizers.Replace(" ", "▁")
    learnt.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if dummy else replaced
    learnt.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    plain = [text for text in texts if text.isascii()]  # other characters are spelled out in bytes
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *bytes_], show_progress=False, limit_alphabet=200
    )
    learnt.train_from_iterator(plain, trainer)
    known = json.loads(learnt.to_str())["model"]
    merges = [tuple(pair) for pair in known["merges"]]
    fast = Fast(models.BPE(known["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.normalizer = learnt.normalizer
    fast.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast.post_processor = processors.TemplateProcessing(
        "<bos> $A", None, [("<bos>", fast.token_to_id("<bos>"))]
    )
    return as_tokenizer(
        fast,
        f"sentence-piece-{size}-{dummy}-{hash(texts)}",
        bos_token="<bos>",
        eos_token="<end_of_turn>",
        chat_template=TURNS,
    )


@cache
def letters(size: int, last: str) -> Tokenizer:
    """Id 0 is 'A', 1 is 'B' and so on, the last one the two letters `last`."""
    vocab = {chr(65 + id): id for id in range(size - 1)} | {last: size - 1}
    fast = Fast(models.BPE(vocab, [(last[0], last[1])]))
    fast.decoder = decoders.Fuse()
    return as_tokenizer(fast, f"letters-{size}-{last}")
