"""What all replicas say, as one answer. Knows nothing of Ray or HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

ADDED = ("tokens_per_second", "passes", "drafted", "accepted", "running", "waiting")
"""Of a sample, what has a sum."""

Shown = dict[str, Any]
"""What `Live.shown` gives."""


def metrics(texts: Mapping[str, str]) -> bytes:
    """Every replica's series, each with a label `replica`, in Prometheus' text format.

    Nothing is added up here: a sum falls when a replica goes, which Prometheus takes for a restart of all,
    and a rate or a bound has no sum. `sum without (replica)` adds up what has one.
    """
    registry = CollectorRegistry()
    registry.register(_Labelled(texts))
    return generate_latest(registry)


class _Labelled(Collector):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for replica, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                known = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                known.samples += [
                    sample._replace(labels={**sample.labels, "replica": replica}) for sample in family.samples
                ]
        yield from families.values()


def dashboards(shown: Mapping[str, Shown]) -> Shown:
    """What the page shows of all replicas together: sums, and rates of the sums; by replica."""
    every = list(shown.values())
    return {
        "version": every[0]["version"],
        "time": max(each["time"] for each in every),
        "uptime": max(each["uptime"] for each in every),
        "price_per_hour": every[0]["price_per_hour"],
        "models": [_model(rows) for rows in _by_name(every).values()],
        "running": [row for each in every for row in each["running"]],
        "waiting": sum(each["waiting"] for each in every),
        "history": _history([each["history"] for each in every]),
        "depths": _depths(every),
        "events": [
            {**event, "id": f"{replica}-{event['id']}"}
            for replica, each in shown.items()
            for event in each["events"]
        ],
        "totals": {key: sum(each["totals"][key] for each in every) for key in every[0]["totals"]},
    }


def _by_name(every: Iterable[Shown]) -> dict[str, list[Shown]]:
    """The rows of each model."""
    rows: dict[str, list[Shown]] = {}
    for each in every:
        for model in each["models"]:
            rows.setdefault(model["name"], []).append(model)
    return rows


def _model(rows: Sequence[Shown]) -> Shown:
    """One model. A replica that has not restarted yet may differ in its drafter: the first one is shown."""
    priced = [row for row in rows if row["cost_per_million_tokens"] is not None]
    tokens = sum(row["tokens"] for row in priced)
    cost = sum(row["cost_per_million_tokens"] * row["tokens"] for row in priced)
    return {
        **rows[0],
        "tokens": sum(row["tokens"] for row in rows),
        "speculating": any(row["speculating"] for row in rows),
        "cost_per_million_tokens": cost / tokens if tokens else None,
        "prefix_cache": {
            key: sum(row["prefix_cache"][key] for row in rows) for key in rows[0]["prefix_cache"]
        },
    }


def _history(histories: Sequence[Sequence[Shown]]) -> list[Shown]:
    """A sample for each second that all replicas have reached. Their clocks tick apart: one that has none in
    a second gives that of the second before."""
    by_second = [{int(sample["time"]): sample for sample in history} for history in histories if history]
    if not by_second:
        return []
    merged = []
    first, last = min(min(of) for of in by_second), min(max(of) for of in by_second)
    longest = max(len(of) for of in by_second)
    for second in range(max(first, last - longest + 1), last + 1):
        samples = [sample for of in by_second if (sample := of.get(second) or of.get(second - 1)) is not None]
        if samples:
            merged.append(_sample(float(second), samples))
    return merged


def _sample(time: float, samples: Sequence[Shown]) -> Shown:
    added = {key: sum(sample[key] for sample in samples) for key in ADDED}
    needed = [sample["break_even"] for sample in samples if sample["break_even"] is not None]
    return {
        "time": time,
        **added,
        "acceptance_rate": added["accepted"] / added["drafted"] if added["drafted"] else None,
        "alpha": added["accepted"] / added["passes"] if added["passes"] else None,
        "break_even": max(needed, default=None),
    }


def _depths(every: Sequence[Shown]) -> Shown:
    depths: dict[str, dict[int, Shown]] = {}
    for each in every:
        for name, rows in each["depths"].items():
            known = depths.setdefault(name, {})
            for row in rows:
                at = known.setdefault(row["depth"], {"depth": row["depth"], "drafted": 0, "accepted": 0})
                at["drafted"] += row["drafted"]
                at["accepted"] += row["accepted"]
    return {name: [known[depth] for depth in sorted(known)] for name, known in depths.items()}
