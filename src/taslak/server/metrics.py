"""What Prometheus reads. Counters of passes and drafts are read off the engines when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taslak.engine.sequence import PLAIN, Answer
from taslak.server.catalogue import Catalogue
from taslak.server.live import Live, cost_per_million
from taslak.server.worker import Job

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Of one server."""

    def __init__(self, catalogue: Catalogue, live: Live) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "taslak_requests",
            "Requests that ended, by HTTP status.",
            ["model", "endpoint", "status"],
            registry=self._registry,
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._cached = self._counter("cached_prompt_tokens", "Tokens of prompts that were in the cache.")
        self._first = self._histogram(
            "time_to_first_token_seconds", "From a request to its first token, waiting included.", _FIRST
        )
        self._each = self._histogram(
            "time_per_output_token_seconds", "Of an answer's tokens after the first.", _EACH
        )
        self._whole = self._histogram("request_seconds", "From a request to its last token.", _WHOLE)
        self._registry.register(_Engines(catalogue, live))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"taslak_{name}", text, ["model"], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"taslak_{name}", text, ["model"], registry=self._registry, buckets=buckets)

    def finished(self, name: str, job: Job, index: int, answer: Answer) -> None:
        """Take in an answer; from any thread."""
        if job.requests[index].choice == 0:
            self._prompt.labels(name).inc(answer.prompt_tokens)
            self._cached.labels(name).inc(answer.cached_tokens)
        first, ended = job.first.get(index), job.ended.get(index)
        if first is None or ended is None:
            return
        self._first.labels(name).observe(first - job.started)
        self._whole.labels(name).observe(ended - job.started)
        if len(answer.ids) > 1:
            self._each.labels(name).observe((ended - first) / (len(answer.ids) - 1))

    def status(self, model: str, endpoint: str, status: int) -> None:
        """Count a request that ended. model: "" where it named none that is served, or its body was none."""
        self._requests.labels(model, endpoint, str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


class _Engines(Collector):
    """Gauges and counters that the engines have anyway."""

    def __init__(self, catalogue: Catalogue, live: Live) -> None:
        self._catalogue = catalogue
        self._live = live

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (
            ("requests_running", "Sequences that share the passes.", lambda s: s.worker.running),
            ("requests_waiting", "Sequences that wait for room.", lambda s: s.worker.waiting),
            ("speculation_on", "Whether anything is drafted now.", lambda s: self._live.speculating(s.name)),
            ("prefix_cache_bytes", "K/V kept for prompts to come.", lambda s: s.worker.prefixes.nbytes),
            (
                "monitor_events_open",
                "What a monitor saw and isn't over.",
                lambda s: len(s.monitor.open_events),
            ),
            (
                "cost_per_million_tokens",
                "At the configured price of an hour.",
                lambda s: cost_per_million(s, self._catalogue.settings.price_per_hour),
            ),
        ):
            gauge = GaugeMetricFamily(f"taslak_{name}", text, labels=["model"])
            for served in self._catalogue:
                figure = value(served)
                if figure is not None:
                    gauge.add_metric([served.name], float(figure))
            yield gauge
        generated = CounterMetricFamily("taslak_generation_tokens", "Tokens of answers.", labels=["model"])
        events = CounterMetricFamily(
            "taslak_monitor_events", "Events of monitors that started.", labels=["model", "kind"]
        )
        for served in self._catalogue:
            generated.add_metric([served.name], served.worker.tokens)
            kinds: dict[str, int] = {}
            for (kind, _, _), count in list(served.monitor.counts.items()):
                kinds[kind] = kinds.get(kind, 0) + count
            for kind, count in kinds.items():
                events.add_metric([served.name, kind], count)
        yield generated
        yield events
        yield from self._drafting()

    def _drafting(self) -> Iterator[Metric]:
        labels = ["model", "method"]
        drafts = CounterMetricFamily("taslak_spec_decode_num_drafts", "Drafts verified.", labels=labels)
        drafted = CounterMetricFamily(
            "taslak_spec_decode_num_draft_tokens",
            "Depth of the drafts, as far as it was judged.",
            labels=labels,
        )
        accepted = CounterMetricFamily(
            "taslak_spec_decode_num_accepted_tokens", "Drafted tokens kept, without bonuses.", labels=labels
        )
        by_depth = CounterMetricFamily(
            "taslak_spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens kept at each depth, from 0.",
            labels=[*labels, "position"],
        )
        rate = GaugeMetricFamily(
            "taslak_spec_decode_acceptance_rate",
            "Accepted over drafted depth in the last minute.",
            labels=labels,
        )
        alpha = GaugeMetricFamily(
            "taslak_spec_decode_alpha", "Accepted tokens a pass in the last minute.", labels=labels
        )
        for served in self._catalogue:
            for method, counts in served.worker.totals.items():
                if method == PLAIN:
                    continue
                at = [served.name, method]
                drafts.add_metric(at, counts.offered_at[0] if counts.offered_at else 0)
                drafted.add_metric(at, counts.drafted)
                accepted.add_metric(at, counts.accepted)
                for position, kept in enumerate(list(counts.accepted_at)):
                    by_depth.add_metric([*at, str(position)], kept)
            for method, (recent_rate, recent_alpha) in self._live.recent(served.name).items():
                rate.add_metric([served.name, method], recent_rate)
                alpha.add_metric([served.name, method], recent_alpha)
        yield from (drafts, drafted, accepted, by_depth, rate, alpha)
