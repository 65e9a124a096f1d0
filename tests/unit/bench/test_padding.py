"""Padding reaches the asked number of tokens from below and changes nothing else."""

from __future__ import annotations

import pytest

from taslak.bench.padding import Given, padded


def count(given: Given) -> int:
    """Two tokens a word, and one a message."""
    texts = [given] if isinstance(given, str) else [message["content"] for message in given]
    return sum(2 * len(text.split()) + 1 for text in texts)


@pytest.mark.parametrize("tokens", [64, 700, 5000])
def test_the_number_of_tokens_is_reached(tokens: int) -> None:
    prompt = "What is the capital?"
    made = padded(prompt, tokens, count)
    assert isinstance(made, str)
    assert made.endswith("\n\n" + prompt)
    assert tokens - 2 <= count(made) <= tokens


def test_a_prompt_long_enough_stays_as_it_is() -> None:
    assert padded("one two three", 7, count) == "one two three"


def test_messages_are_padded_in_front_of_the_users_first() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "user", "content": "there"},
    ]
    made = padded(messages, 60, count)
    assert made[0] == messages[0]
    assert made[2] == messages[2]
    assert made[1]["content"].endswith("\n\nHello")  # type: ignore[index]
    assert 58 <= count(made) <= 60
    assert messages[1]["content"] == "Hello"
