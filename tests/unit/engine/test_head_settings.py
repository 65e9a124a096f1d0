"""What `load` makes of a head: the method follows from it, and no setting is silently ignored."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import taslak
from taslak import loading
from taslak.drafters import formats
from taslak.drafters.formats import Drafting, write_head
from taslak.engine.policy import FixedGamma
from taslak.engine.turn import Load
from taslak.errors import OptionError
from tests.support.heads import CONFIGS, random_head


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "ngram"}, "uses no head"),
        ({"method": "draft-model"}, "uses no head"),
        ({"method": "eagle"}, "got one of kind medusa"),
        ({"draft_dtype": "int8"}, "leave draft_dtype out"),
        ({"branch": 1, "tree": "static"}, "branch is 1"),
        ({"branch": 1, "nodes": 8}, "branch is 1"),
        ({"tree": "bushy"}, "tree is 'bushy'"),
        ({"nodes": 0}, "nodes is 0"),
        ({"nodes": 129}, "nodes is 129"),
        ({"lookup": "suffix", "method": "medusa"}, "no look-up"),
        ({"lookup": "medusa"}, "lookup is 'medusa'"),
    ],
    ids=str,
)
def test_settings_a_head_can_not_use_are_refused(
    tmp_path: Path, settings: dict[str, Any], match: str
) -> None:
    """Before anything is downloaded: there is no such model."""
    write_head(tmp_path, random_head(CONFIGS["medusa"]))
    with pytest.raises(OptionError, match=match):
        taslak.load("no-such-model", draft=str(tmp_path), **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "eagle"}, "needs a head of its kind; name its folder"),
        ({"method": "ngram", "tree": "static"}, "one kind of tree"),
        ({"method": "ngram", "nodes": 4}, "drafts one line"),
        ({"method": "suffix", "tree": "dynamic"}, "one kind of tree"),
    ],
    ids=str,
)
def test_settings_without_a_head(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        taslak.load("no-such-model", **settings)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load` up to the point where weights are read: what it would make the language model with, where
    nothing is chosen step by step."""
    target = SimpleNamespace(decoder=SimpleNamespace(weight_bytes=0))
    monkeypatch.setattr(loading, "load_pretrained", lambda *_, **__: target)
    monkeypatch.setattr(loading, "LanguageModel", lambda *_, **settings: SimpleNamespace(**settings))
    return partial(taslak.load, control=False)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, (3, 4, "static", 7, 0.2)),
        ({"gamma": 6}, (6, 4, "static", 7, 0.2)),
        ({"branch": 1}, (3, 1, None, None, 0.2)),
        ({"branch": 2}, (3, 2, None, None, 0.2)),
        ({"nodes": 5}, (3, 4, None, 5, 0.2)),
        ({"tree": "dynamic"}, (3, 4, "dynamic", None, 0.2)),
        ({"stop_below": 0.0}, (3, 4, "static", 7, 0.0)),
    ],
    ids=str,
)
def test_a_head_is_used_as_its_file_says(
    tmp_path: Path, chosen: Any, given: dict[str, Any], used: tuple[Any, ...]
) -> None:
    """Unless something else is asked; its tree goes as a whole, for half of one fits nothing."""
    head = replace(random_head(CONFIGS["eagle"]), drafting=Drafting(3, 4, "static", 7, 0.2))
    write_head(tmp_path, head)
    model = chosen("m", draft=str(tmp_path), **given)
    assert (model.gamma, model.branch, model.tree, model.nodes, model.stop_below) == used


def test_a_head_whose_file_says_nothing_drafts_a_line(tmp_path: Path, chosen: Any) -> None:
    write_head(tmp_path, random_head(CONFIGS["eagle"]))
    model = chosen("m", draft=str(tmp_path))
    assert (model.gamma, model.branch, model.tree, model.nodes, model.stop_below) == (5, 1, None, None, 0)


def test_a_model_drafts_with_the_head_that_comes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: Any
) -> None:
    monkeypatch.setattr(formats, "SHIPPED", tmp_path)
    for kind in ("eagle", "medusa", "early-exit"):
        write_head(tmp_path / f"m-{kind}", random_head(CONFIGS[kind]))

    def made(*model: str, **given: Any) -> tuple[str, ...]:
        found = chosen(*model, **given)
        return found.method, *found.heads

    assert made("m") == made("m", method="auto") == ("suffix+eagle", "m-eagle")
    assert made("m", method="eagle") == ("eagle", "m-eagle")
    assert made("m", method="medusa") == ("medusa", "m-medusa")
    assert made("m", method="early-exit") == ("early-exit", "m-early-exit")
    assert made("m", exit_layer=2) == ("suffix+early-exit",)
    assert made("m", method="suffix") == ("suffix",)
    assert made("m", method="ngram+eagle+medusa") == ("ngram+eagle+medusa", "m-eagle", "m-medusa")
    assert made("another") == ("suffix",)
    write_head(tmp_path / "own", random_head(CONFIGS["medusa"]))
    assert made("m", draft=str(tmp_path / "own")) == ("suffix+medusa", str(tmp_path / "own"))
    both = made("m", draft=str(tmp_path / "own"), method="medusa+eagle")
    assert both == ("medusa+eagle", str(tmp_path / "own"), "m-eagle")
    with pytest.raises(OptionError, match="method eagle3 needs a head of its kind"):
        made("m", method="eagle3")


def test_a_node_budget_is_what_the_cache_keeps_room_for() -> None:
    assert FixedGamma(5, 4).max_nodes == 20
    policy = FixedGamma(5, 4, nodes=12)
    assert policy.max_nodes == 12
    assert policy.plans([None], {"it": None}, Load(1, 0, 0, 0))[0]["it"].nodes == 12  # type: ignore[list-item, dict-item]
