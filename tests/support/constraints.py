"""Constraints for tests: written out as states, and grammars over a small vocabulary of real text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from taslak.core.constraint import Allowed, Matcher
from taslak.engine.grammar import Grammars

State = Mapping[int, int]


class States:
    """A constraint that is its own matcher: by state, the tokens that go on and where to; an answer may end
    in the states of `ends`. State 0 is the first."""

    def __init__(self, vocab_size: int, states: Sequence[State], ends: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._states = states
        self._ends = ends

    def matcher(self) -> Matcher:
        return self

    def allowed(self, answer: Sequence[int]) -> Allowed:
        tokens = torch.zeros(self._vocab_size, dtype=torch.bool)
        state = self._after(answer)
        if state is None:
            return Allowed(tokens, end=False)
        tokens[list(self._states[state])] = True
        return Allowed(tokens, end=state in self._ends)

    def admits(self, answer: Sequence[int]) -> bool:
        return self._after(answer) is not None

    def _after(self, answer: Sequence[int]) -> int | None:
        state: int | None = 0
        for token in answer:
            if state is not None:
                state = self._states[state].get(token)
        return state


MERGES = ('{"', '":', '",', ' "', '"}', "tr", "ue", "true", "ab", "10")
CHARACTERS = '{}[]":,.- 0123456789abcdefghijklmnopqrstuvwxyz'
ENDS = (56, 57)
"""Two ids that end a text."""
PADDING = (58, 59, 60)
"""Ids of a vocabulary of 61 that no text has."""


class Spelling:
    """A real tokenizer of 56 tokens of text and two end tokens, as `LanguageModel` uses one."""

    name = "spelling"
    has_text = True
    has_chat_template = False

    def __init__(self, eos_ids: tuple[int, ...] = ENDS) -> None:
        self.eos_ids = eos_ids
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokens = [level.pre_tokenize_str(text)[0][0] for text in (*CHARACTERS, *MERGES)]
        pairs = [(merge[:-1], merge[-1]) for merge in tokens[len(CHARACTERS) :]]
        pairs[7] = ("tr", "ue")
        self._fast = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
        self._fast.pre_tokenizer = level
        self._fast.decoder = decoders.ByteLevel()
        self._fast.add_special_tokens(["<end>", "<also the end>"])

    def encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return str(self._fast.decode(list(ids), skip_special_tokens=skip_special))

    def as_json(self) -> str:
        return str(self._fast.to_str())


@cache
def grammars(vocab_size: int = 61) -> Grammars:
    """Over `Spelling`."""
    return Grammars(Spelling(), vocab_size)  # type: ignore[arg-type]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["ab", "true", 10, True]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
