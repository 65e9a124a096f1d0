"""Longer contexts: neutral text in front of a prompt, up to a number of tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Given = str | Sequence[Mapping[str, str]]
Count = Callable[[Given], int]
"""Tokens of what the model would be given."""

_PREAMBLE = Path(__file__).with_name("preamble.txt")


def padded(prompt: Given, tokens: int, count: Count) -> Given:
    """The prompt behind as many words of the preamble as leave it at `tokens` tokens or just under; as it is
    where it has so many. The preamble begins anew where it is too short. Messages get it in front of the
    first of the user's."""
    missing = tokens - count(prompt)
    if missing <= 0:
        return prompt
    words = _PREAMBLE.read_text(encoding="utf-8").split(" ")
    words *= missing // len(words) + 1  # a word has one token at least
    # the most words that still fit: tokens grow with the words, by and large
    fits = bisect_right(range(1, len(words) + 1), tokens, key=lambda n: count(_behind(prompt, words[:n])))
    return _behind(prompt, words[:fits])


def _behind(prompt: Given, words: Sequence[str]) -> Given:
    if not words:
        return prompt
    before = " ".join(words) + "\n\n"
    if isinstance(prompt, str):
        return before + prompt
    first = next((i for i, message in enumerate(prompt) if message["role"] == "user"), 0)
    return [
        {**message, "content": before + message["content"]} if i == first else message
        for i, message in enumerate(prompt)
    ]
