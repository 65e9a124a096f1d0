"""A real model under constraints: what it answers is valid, and the same with speculation and without."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import taslak
from taslak.engine import LanguageModel

pytestmark = pytest.mark.integration

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
PROMPT = "Invent a person and describe them as JSON with name, age and favourite colours."


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return taslak.load("smollm2-135m-instruct", method="suffix", gamma=5, exact=True)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 11}], ids=["greedy", "sampled"])
def test_json_for_a_schema(model: LanguageModel, options: dict[str, Any]) -> None:
    plain = model.generate(PROMPT, json_schema=SCHEMA, speculate=False, **options)
    drafted = model.generate(PROMPT, json_schema=SCHEMA, **options)
    assert drafted.ids == plain.ids
    assert drafted.text == plain.text
    assert (drafted.finish_reason, drafted.dropped) == ("stop", 0)
    assert drafted.counts.drafted > 0
    person = json.loads(drafted.text)
    assert set(person) == {"name", "age", "colours"}
    assert isinstance(person["name"], str)
    assert person["age"] in range(121)
    assert set(person["colours"]) <= {"red", "green", "blue"}
    assert len(person["colours"]) <= 3


def test_text_for_a_regex_is_plain_text(model: LanguageModel) -> None:
    """With letters that take several tokens, bytes among them."""
    regex = "(Ja|Nein), weil [a-zäöüß ]{10,40}\\. 🎉{2}"
    for options in ({}, {"temperature": 0.9, "seed": 4}):
        plain = model.generate("Ist Wasser nass?", regex=regex, speculate=False, **options)
        drafted = model.generate("Ist Wasser nass?", regex=regex, **options)
        assert drafted.ids == plain.ids
        assert re.fullmatch(regex, drafted.text), drafted.text
