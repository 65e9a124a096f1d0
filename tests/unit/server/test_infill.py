"""Prompts to fill in between two texts, for each family of tokens, and for models that have none."""

from __future__ import annotations

import pytest

from taslak.errors import OptionError
from taslak.server.infill import FAMILIES, infill


class Tokenizer:
    """Letters as their code points; the special tokens of one family from 1000 on, bos 1."""

    name = "letters"

    def __init__(self, special: tuple[str, ...], bos: bool = False) -> None:
        self._special = special
        self.bos_id = 1
        self._bos = bos

    def token_id(self, token: str) -> int | None:
        return 1000 + self._special.index(token) if token in self._special else None

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return ([1] if self._bos and add_special else []) + [ord(char) for char in text]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family(family: tuple[str, str, str]) -> None:
    ids = infill(Tokenizer(family), "ab", "c")  # type: ignore[arg-type]
    assert ids == [1000, ord("a"), ord("b"), 1001, ord("c"), 1002]
    ids = infill(Tokenizer(family, bos=True), "", "c")  # type: ignore[arg-type]
    assert ids == [1, 1000, 1001, ord("c"), 1002]


def test_a_model_without_them_is_told() -> None:
    with pytest.raises(OptionError, match="letters"):
        infill(Tokenizer(("<|fim_prefix|>",)), "ab", "c")  # type: ignore[arg-type]
