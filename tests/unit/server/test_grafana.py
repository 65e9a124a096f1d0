"""The Grafana dashboard asks for metrics that there are, by labels they have, and for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.metric_names import HISTOGRAMS, METRICS

FILE = Path(__file__).resolve().parents[3] / "src" / "taslak" / "server" / "grafana.json"
DASHBOARD = json.loads(FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries(panels: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in panels:
        for target in panel["targets"]:
            yield panel["title"], target


QUERIES = list(queries(PANELS))
EXPRESSIONS = [target["expr"] for _, target in QUERIES]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def metric(series: str) -> str:
    """A histogram's series go by its name and one of three endings."""
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    return base if base in HISTOGRAMS and base != series else series


def metrics(text: str) -> set[str]:
    return {metric(series) for series in re.findall(r"\btaslak_\w+", text)}


@pytest.mark.parametrize("expression", [*EXPRESSIONS, VARIABLES["model"]["definition"]])
def test_metrics_and_labels_exist(expression: str) -> None:
    found = metrics(expression)
    assert found
    assert found <= METRICS.keys()
    labels = {label for name in found for label in METRICS[name]}
    if "_bucket" in expression:
        labels.add("le")
    for group in re.findall(r"\b(?:by|ignoring|on) \(([\w, ]*)\)", expression):
        assert set(group.split(", ")) <= labels, group


@pytest.mark.parametrize(("title", "target"), QUERIES)
def test_legends_name_labels_that_the_query_keeps(title: str, target: dict[str, Any]) -> None:
    kept = re.search(r"\bby \(([\w, ]*)\)", target["expr"])
    labels = kept[1].split(", ") if kept else METRICS[metrics(target["expr"]).pop()]
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(labels), title


def test_histograms_are_asked_by_their_series() -> None:
    series = {name for text in EXPRESSIONS for name in re.findall(r"\btaslak_\w+", text)}
    assert not series & HISTOGRAMS


def test_every_metric_is_shown() -> None:
    assert {name for text in EXPRESSIONS for name in metrics(text)} == METRICS.keys()


def test_source_and_models_are_chosen_at_the_top() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    for holder in [VARIABLES["model"], *PANELS, *(target for _, target in QUERIES)]:
        assert holder["datasource"]["uid"] == "${datasource}"
    for expression in EXPRESSIONS:
        assert expression.count("taslak_") == expression.count('{model=~"$model"}')


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
