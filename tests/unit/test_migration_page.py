"""docs/migration.md names nothing that isn't there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

from taslak.cli.app import app
from taslak.drafters.base import method
from taslak.engine import language_model
from taslak.interop import aliases
from taslak.interop.wrap import DRAFTING
from taslak.loading import load
from tests.support.metric_names import METRICS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


def sections() -> dict[str, list[list[str]]]:
    """Heading -> rows of its table, three cells each."""
    found = {}
    for part in PAGE.split("\n## ")[1:]:
        rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        if rows:
            found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


TABLES = sections()
OURS = [cell for rows in TABLES.values() for _, cell, _ in rows]


def options(command: str) -> set[str]:
    """Of a command of taslak."""
    params = get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {name for param in params for name in param.opts}


def test_the_tables_are_whole() -> None:
    assert list(TABLES) == ["transformers' own calls", "llama.cpp", "vLLM", "SGLang"]
    assert all(len(row) == 3 for rows in TABLES.values() for row in rows)
    spans = [span for cell in OURS for span in re.findall(r"`([^`]+)`", cell)]
    known = r"--[a-z]|load\(|generate\(|taslak serve |taslak_spec|speculation\.|language_model\.stream"
    assert [span for span in spans if not re.match(known, span)] == [], "a span that no test looks at"
    assert all(cell == "–" or "`" in cell for cell in OURS)


def test_options_are_those_of_the_commands() -> None:
    for cell in OURS:
        for span in re.findall(r"`((?:taslak serve )?--[^`]+)`", cell):
            name, *value = span.removeprefix("taslak serve ").split()
            assert name in options("serve" if span.startswith("taslak") else "generate"), span
            if name == "--method":
                method(value[0])  # raises for one that isn't registered
            if name == "--verify":
                assert value[0] in ("coupled", "rejection")


def test_parameters_are_those_of_load_and_of_answers() -> None:
    answers = language_model._OWN | language_model._SAMPLING | language_model._GRAMMARS
    for cell in OURS:
        for name in re.findall(r"`load\((\w+)=\)`", cell):
            assert name in inspect.signature(load).parameters
            assert name in (*DRAFTING, "draft"), "from_transformers takes it too"
        for name in re.findall(r"`generate\((\w+)=\)`", cell):
            assert name in answers


def test_metrics_and_fields_are_the_servers() -> None:
    from taslak.server import form

    source = inspect.getsource(form)
    for cell in OURS:
        for name in re.findall(r"`(taslak_\w+)`", cell):
            assert name in METRICS
        for name in re.findall(r"`speculation\.(\w+)`", cell):
            assert f'"{name}"' in source


@pytest.mark.parametrize("group", ["TRANSLATED", "ARGUMENTS", "ASSISTED"])
def test_every_name_that_is_translated_is_in_the_table(group: str) -> None:
    told = {name for cell, _, _ in TABLES["transformers' own calls"] for name in re.findall(r"`(\w+)`", cell)}
    own = {"input_ids", "attention_mask", "seed", "tokenizer"}
    assert set(getattr(aliases, group)) - own <= told


def test_names_of_transformers_are_known_to_the_aliases() -> None:
    told = {name for cell, _, _ in TABLES["transformers' own calls"] for name in re.findall(r"`(\w+)`", cell)}
    groups = (aliases.TRANSLATED, aliases.WITHOUT_EFFECT, aliases.REFUSED, aliases.ARGUMENTS)
    known = set().union(*groups, aliases.REFUSED_ARGUMENTS)
    assert told - known == {"set_seed"}
