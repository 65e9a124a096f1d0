"""What `load` makes of a head: the method follows from it, and no setting is silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import taslak
from taslak.drafters.formats import write_head
from taslak.engine.step import FixedGamma
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
        ({"lookup": "suffix"}, "no look-up"),
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


def test_a_node_budget_is_what_the_cache_keeps_room_for() -> None:
    assert FixedGamma(5, 4).max_nodes == 20
    policy = FixedGamma(5, 4, nodes=12)
    assert policy.max_nodes == 12
    assert policy.budgets([None])[0].nodes == 12  # type: ignore[list-item]
