"""What several replicas say, as one answer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra [serve]")
pytest.importorskip("ray", reason="needs the extra [ray]")

from prometheus_client.parser import text_string_to_metric_families

from taslak.server.ray.merge import dashboards, metrics

TEXT = """# HELP taslak_requests_total Requests.
# TYPE taslak_requests_total counter
taslak_requests_total{{model="m"}} {count}
# HELP taslak_request_seconds Time.
# TYPE taslak_request_seconds histogram
taslak_request_seconds_bucket{{le="1.0",model="m"}} {count}
taslak_request_seconds_bucket{{le="+Inf",model="m"}} {count}
taslak_request_seconds_count{{model="m"}} {count}
taslak_request_seconds_sum{{model="m"}} 0.5
"""


def shown(tokens: int, at: list[float], **fields: Any) -> dict[str, Any]:
    """What a replica with one model shows, with a sample at each of these times."""
    return {
        "version": "1",
        "time": at[-1] + 0.5 if at else 0.0,
        "uptime": 10.0 + tokens,
        "price_per_hour": 2.0,
        "models": [
            {
                "name": "m",
                "tokens": tokens,
                "method": "suffix",
                "speculating": tokens > 100,
                "cost_per_million_tokens": 3.0 if tokens > 100 else 1.0 if tokens else None,
                "prefix_cache": {"bytes": 1, "limit": 2, "hit_tokens": tokens},
            }
        ],
        "running": [{"id": f"r{tokens}"}],
        "waiting": 1,
        "history": [
            {
                "time": time,
                "tokens_per_second": float(tokens),
                "passes": 10,
                "drafted": 20 if tokens > 100 else 0,
                "accepted": 5 if tokens > 100 else 0,
                "acceptance_rate": None,
                "alpha": None,
                "break_even": 0.25 if tokens > 100 else None,
                "running": 1,
                "waiting": 2,
            }
            for time in at
        ],
        "depths": {"m": [{"depth": 1, "drafted": tokens, "accepted": 1}]},
        "events": [{"id": 1, "time": 3.0}],
        "totals": {"requests": 2, "tokens": tokens},
        **fields,
    }


def test_every_series_says_whose_it_is() -> None:
    text = metrics({"a": TEXT.format(count=3), "b": TEXT.format(count=4)}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"taslak_requests", "taslak_request_seconds"}
    assert families["taslak_requests"].type == "counter"
    assert families["taslak_request_seconds"].type == "histogram"
    counts = {s.labels["replica"]: s.value for s in families["taslak_requests"].samples}
    assert counts == {"a": 3, "b": 4}
    for family in families.values():
        assert all(sample.labels["model"] == "m" for sample in family.samples)
    assert text.count("# TYPE taslak_requests_total") == 1
    assert metrics({}) == b""


def test_a_dashboard_shows_the_sum() -> None:
    merged = dashboards({"a": shown(300, [1.2, 2.2, 3.2]), "b": shown(100, [1.9, 2.9])})
    assert merged["totals"] == {"requests": 4, "tokens": 400}
    assert merged["uptime"] == 310.0
    assert merged["waiting"] == 2
    assert [row["id"] for row in merged["running"]] == ["r300", "r100"]
    (model,) = merged["models"]
    assert model["tokens"] == 400
    assert model["speculating"] is True
    assert model["cost_per_million_tokens"] == pytest.approx((3.0 * 300 + 1.0 * 100) / 400)
    assert model["prefix_cache"] == {"bytes": 2, "limit": 4, "hit_tokens": 400}
    assert merged["depths"] == {"m": [{"depth": 1, "drafted": 400, "accepted": 2}]}
    assert [event["id"] for event in merged["events"]] == ["a-1", "b-1"]
    # the third second is not over for both
    assert [sample["time"] for sample in merged["history"]] == [1.0, 2.0]
    for sample in merged["history"]:
        assert sample["tokens_per_second"] == 400.0
        assert sample["acceptance_rate"] == 5 / 20
        assert sample["alpha"] == 5 / 20
        assert sample["break_even"] == 0.25
        assert (sample["running"], sample["waiting"]) == (2, 4)


def test_a_second_without_a_sample_is_no_gap() -> None:
    merged = dashboards({"a": shown(1, [1.0, 2.0, 3.0, 4.0]), "b": shown(2, [1.9, 3.1, 4.1])})
    assert [sample["tokens_per_second"] for sample in merged["history"]] == [3.0] * 4


def test_a_replica_that_has_just_come_adds_from_then_on() -> None:
    merged = dashboards({"a": shown(1, [1.0, 2.0, 3.0]), "b": shown(2, [3.5]), "c": shown(4, [])})
    assert [sample["tokens_per_second"] for sample in merged["history"]] == [1.0, 1.0, 3.0]
    idle = dashboards({"c": shown(0, [])})
    assert idle["history"] == []
    assert idle["models"][0]["cost_per_million_tokens"] is None
