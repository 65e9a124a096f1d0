"""The heads that come with taslak: what they are, how large, and where they come from."""

from __future__ import annotations

import json
import re

import pytest

from taslak.drafters.formats import SHIPPED, find_head, read_head, shipped_head
from taslak.models.loading import DEFAULT_PACK

MOST = {"eagle": 14_000_000, "medusa": 14_000_000, "early-exit": 6_000_000}
"""Bytes of a head's weights."""


@pytest.mark.parametrize("kind", MOST)
def test_a_head_of_each_kind_comes_with_the_default_model(kind: str) -> None:
    name = shipped_head(DEFAULT_PACK, kind)
    assert name is not None
    folder = find_head(name)
    assert folder is not None
    head = read_head(folder)
    assert (head.kind, head.target.name) == (kind, DEFAULT_PACK)
    assert head.drafting is not None, "it says how it is used best"
    assert (folder / "model.safetensors").stat().st_size <= MOST[kind]
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "provenance.json",
    }


def test_every_shipped_head_says_where_it_comes_from() -> None:
    for folder in SHIPPED.iterdir():
        text = (folder / "provenance.json").read_text(encoding="utf-8")
        made = json.loads(text)
        assert {"command", "settings", "commit", "versions", "data", "curves", "texts"} <= set(made), folder
        assert made["curves"][-1]["held_out"], folder
        assert not re.search(r'"/|~/|\\\\', text), f"{folder}: paths of a machine"
