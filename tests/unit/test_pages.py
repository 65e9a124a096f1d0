"""The guide's generated parts: the page of docstrings, figures, the recording, tables of several results."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import taslak
from taslak.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
LISTED = re.findall(r"^::: ([\w.]+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_public_name_is_on_the_page_of_docstrings() -> None:
    assert {f"taslak.{name}" for name in taslak.__all__ if name != "__version__"} <= set(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_what_the_page_of_docstrings_names_has_one(name: str) -> None:
    parent, _, last = name.rpartition(".")
    found = getattr(import_module(parent), last, None) or import_module(name)
    assert found.__doc__


def test_every_picture_is_shown() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [picture.name for picture in IMAGES.iterdir() if f"images/{picture.name})" not in shown] == []


def test_the_recording_shows_the_same_text_twice_and_where_it_was_drafted() -> None:
    svg = ET.parse(IMAGES / "recording.svg").getroot()
    space = {"": "http://www.w3.org/2000/svg"}

    def letters(pane: ET.Element) -> dict[tuple[float, float], str]:
        """By place, what stands there."""
        found = {}
        for text in pane.findall("text", space):
            if text.get("class") in (None, "drafted"):
                shown, length = "".join(text.itertext()), float(text.get("textLength", "0"))
                for i, letter in enumerate(shown):
                    place = (
                        round(float(text.get("x", "0")) + i * length / len(shown)),
                        float(text.get("y", "0")),
                    )
                    found[place] = letter
        return {place: letter for place, letter in found.items() if letter.strip()}

    plain, drafted = svg.findall("g", space)
    assert letters(plain) == letters(drafted) != {}
    assert [pane.find("text[@class='drafted']", space) is None for pane in (plain, drafted)] == [True, False]


def test_the_readmes_table_shows_losses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    summaries = import_module("summaries")
    rows = summaries.readme(ROOT / "benchmarks" / "results")["rows"]
    assert any(times > 1.2 for _, _, _, times, *_ in rows)
    assert any(times < 0.9 for _, _, _, times, *_ in rows)
    assert all(times == pytest.approx(fast / plain, rel=0.02) for _, plain, fast, times, *_ in rows)


def test_the_image_is_made_of_what_is_there_and_starts_with_a_command_there_is() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert [name for name in copied if f"!{name}" not in ignored or not (ROOT / name).exists()] == []
    entry, command = (
        json.loads(line.split(" ", 1)[1])
        for word in ("ENTRYPOINT", "CMD")
        for line in lines
        if line.startswith(word)
    )
    program, name, *rest = [*entry, *command]
    commands: Any = typer.main.get_command(app)
    assert program == "taslak"
    assert commands.commands[name].make_context(name, rest).params["host"] == "0.0.0.0"
