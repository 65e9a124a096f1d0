"""The tokenizer inside a GGUF file, rebuilt as tokenizer.json and tokenizer_config.json.

Two kinds: byte-level BPE ("gpt2" in the metadata) and SentencePiece BPE with byte fallback ("llama"). A GGUF
names the rule that splits text before BPE without spelling it out, so the rules are a table here; an unknown
one is refused, as a wrong rule would quietly give other tokens than the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from taslak.errors import CheckpointError
from taslak.models.loading import storage
from taslak.models.loading.gguf import GGUFModel

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Splitting rules by tokenizer.ggml.pre, as the models' own tokenizer.json files spell them.
_GPT2 = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),)
_SMOLLM = (pre_tokenizers.Digits(individual_digits=True), *_GPT2)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_QWEN2 = (pre_tokenizers.Split(Regex(_WORDS + r"\p{N}" + _REST), behavior="isolated"), _BYTES)
_THREES = pre_tokenizers.Split(Regex(_WORDS + r"\p{N}{1,3}" + _REST), behavior="isolated")
_LLAMA3 = (_THREES, _BYTES)
PRE_TOKENIZERS: Mapping[str, tuple[Any, ...]] = {
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _SMOLLM,
    "refact": _SMOLLM,
    "starcoder": _SMOLLM,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
}
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
"""Of these rules, those of Llama 3 itself."""
# What "default", or no name at all in older files, stands for.
DEFAULT_PRE = {"qwen2": "qwen2"}
# Tokens that end a turn or a text in every chat format that has them.
ENDINGS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
)


class GGUFTokenizer:
    """A GGUF's tokenizer: `tokenizer` as a tokenizers.Tokenizer, and the ids that mean something.

    Raises CheckpointError for a kind of tokenizer or splitting rule that isn't supported.
    """

    def __init__(self, model: GGUFModel) -> None:
        self._model = model
        self._tokens: list[str] = self._metadata("tokens")
        if not self._tokens:
            raise CheckpointError(f"{model.path} holds no tokenizer (tokenizer.ggml.tokens is missing)")
        self._types: list[int] = self._metadata("token_type") or [NORMAL] * len(self._tokens)
        self.bos_id: int | None = self._metadata("bos_token_id")
        self.eos_id: int | None = self._metadata("eos_token_id")
        self.pad_id: int | None = self._metadata("padding_token_id")
        kind = self._metadata("model")
        if kind == "gpt2":
            self.tokenizer = self._byte_level()
        elif kind == "llama":
            self.tokenizer = self._sentencepiece()
        else:
            raise CheckpointError(
                f"{model.path} has a tokenizer of the kind {kind!r}; supported are: gpt2, llama"
            )
        self._add_special_tokens()
        self._add_template(spm=kind == "llama")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: the file's own, and the enders of chat turns it has."""
        ids = [self.eos_id, self._metadata("eot_token_id"), self._metadata("eom_token_id")]
        special = {token: id for id, token in enumerate(self._tokens) if self._types[id] == CONTROL}
        ids += [special.get(ending) for ending in ENDINGS]
        return tuple(dict.fromkeys(id for id in ids if id is not None))

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json."""
        (folder / "tokenizer.json").write_text(_quickly_read(self.tokenizer), encoding="utf-8")
        named = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        named["unk_token"] = self._metadata("unknown_token_id")
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        config |= {name: None if id is None else self._tokens[id] for name, id in named.items()}
        config["model_max_length"] = self._model.setting("context_length")
        if template := self._model.value("tokenizer.chat_template"):
            config["chat_template"] = template
        storage.write_json(folder / "tokenizer_config.json", config)

    def _metadata(self, key: str) -> Any:
        return self._model.value(f"tokenizer.ggml.{key}")

    def _vocabulary(self) -> dict[str, int]:
        """Token -> id, without the ids that only pad the embedding matrix; the first of equals counts."""
        vocabulary: dict[str, int] = {}
        for id, token in enumerate(self._tokens):
            if self._types[id] != UNUSED:
                vocabulary.setdefault(token, id)
        return vocabulary

    def _byte_level(self) -> Tokenizer:
        name = self._metadata("pre")
        if name in (None, "default"):
            name = DEFAULT_PRE.get(self._model.architecture_name, "gpt-2")
        if name not in PRE_TOKENIZERS:
            raise CheckpointError(
                f"{self._model.path} splits text by the rule {name!r} (tokenizer.ggml.pre); "
                f"supported are: {', '.join(PRE_TOKENIZERS)}"
            )
        rule = PRE_TOKENIZERS[name]
        merges = [tuple(merge.split(" ", 1)) for merge in self._metadata("merges") or ()]
        # Llama 3 takes a whole word that is a token as it is, even where the merges would not build it.
        bpe = models.BPE(self._vocabulary(), merges, ignore_merges=name in LLAMA3)
        tokenizer = Tokenizer(bpe)
        if rule is _QWEN2:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(rule)) if len(rule) > 1 else rule[0]
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> Tokenizer:
        unknown = self._metadata("unknown_token_id")
        bpe = models.BPE(
            self._vocabulary(),
            self._merges_from_scores(),
            unk_token=None if unknown is None else self._tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(bpe)
        prefix = (
            self._metadata("add_space_prefix") is not False
        )  # older files don't say; SentencePiece does it
        spaces = [normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if prefix else spaces)
        pieces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*pieces, decoders.Strip(" ", 1, 0)] if prefix else pieces)
        return tokenizer

    def _merges_from_scores(self) -> list[tuple[str, str]]:
        """The merges a SentencePiece vocabulary implies: each split of a piece in two, best score first."""
        scores = self._metadata("scores") or [0.0] * len(self._tokens)
        vocabulary = self._vocabulary()
        found: list[tuple[float, int, str, str]] = []
        for id, token in enumerate(self._tokens):
            if self._types[id] != NORMAL:
                continue
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in vocabulary and right in vocabulary:
                    found.append((-scores[id], -len(left), left, right))
        found.sort(key=lambda entry: entry[:2])
        return [(left, right) for _, _, left, right in found]

    def _add_special_tokens(self) -> None:
        """Control tokens stay whole and are left out of decoded text; user-defined ones just stay whole."""
        for kind in (CONTROL, USER_DEFINED):
            special = kind == CONTROL
            added = [
                AddedToken(token, normalized=False, special=special)
                for id, token in enumerate(self._tokens)
                if self._types[id] == kind
            ]
            (self.tokenizer.add_special_tokens if special else self.tokenizer.add_tokens)(added)

    def _add_template(self, spm: bool) -> None:
        """Puts bos and eos around a text as the file says, or as is usual where it doesn't say."""
        llama3 = self._metadata("pre") in LLAMA3
        bos = self.bos_id if self._flag("add_bos_token", spm or llama3) else None
        eos = self.eos_id if self._flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return
        before = [] if bos is None else [self._tokens[bos]]
        after = [] if eos is None else [self._tokens[eos]]
        self.tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[(self._tokens[id], id) for id in (bos, eos) if id is not None],
        )

    def _flag(self, key: str, default: bool) -> bool:
        value = self._metadata(key)
        return default if value is None else bool(value)


def _quickly_read(tokenizer: Tokenizer) -> str:
    """tokenizer.json in the form that is read fastest: without spaces, and merges spelled "a b" where no part
    has a space of its own. Reading it is most of what a second start takes; so it takes a quarter less."""
    content = json.loads(tokenizer.to_str())
    merges = content["model"]["merges"]
    if not any(" " in part for merge in merges for part in merge):
        content["model"]["merges"] = [" ".join(merge) for merge in merges]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
