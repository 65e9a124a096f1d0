"""The page, the pictures, the tables and Spec-Bench's answers of one run."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from taslak.bench import gallery, report, specbench, table
from taslak.bench.figures import Figures
from taslak.bench.grid import PLAINLY, Way
from taslak.bench.results import Agreement, Results
from taslak.errors import OptionError
from tests.unit.bench.conftest import Ran

AGREED = tuple(
    Agreement("eagle", task, temperature, 9, 0.6, 0.5, None if temperature == 0 else 1.2, None)
    for task in ("one", "two")
    for temperature in (0.0, 0.9)
)


class Page(HTMLParser):
    """What a browser would fetch, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def results(ran: Ran) -> Results:
    return replace(ran.results, agreements=AGREED)


@pytest.fixture(scope="module")
def html(results: Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    report.write(results, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_needs_nothing_else(html: str) -> None:
    page = Page(html)
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert page.fetched
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.fetched)
    assert re.search(r"https?://|url\(|@import", html) is None
    for address in page.fetched:
        svg = base64.b64decode(address.partition(",")[2]).decode("utf-8")
        assert re.findall(r'href="(?!#)', svg) == []
        assert "<script" not in svg


def test_every_plot_is_there_with_its_words(html: str, results: Results) -> None:
    page = Page(html)
    shown = set(gallery.draw_all(Figures(results)))
    assert shown >= {
        "speedup-by-task", "hazards", "tau-by-gamma", "speedup-by-gamma", "cost-curve", "speedup-by-batch",
        "acceptance-by-temperature", "acceptance-by-context", "memory", "agreement",
    }  # fmt: skip
    assert "speedup-by-length" not in shown  # one length only
    assert len(page.fetched) == len(shown)
    assert all(plot.title in page.text for plot in gallery.PLOTS if plot.name in shown)


def test_pictures_are_written_on_request(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "PLOTS", gallery.PLOTS[:2])
    files = report.write(results, tmp_path / "report.html", tmp_path / "png")
    assert [file.name for file in files] == ["report.html", "speedup-by-task.png", "hazards.png"]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files[1:])


def test_losses_are_marked(results: Results) -> None:
    slow = tuple(
        replace(made, seconds=made.seconds * 9) if made.way.method == "draft-model" else made
        for made in results.measurements
    )
    lost = replace(results, measurements=slow)
    found = Figures(lost)
    assert len([case for case in found.losses() if case.way.method == "draft-model"]) == 4
    page = report.page(found, {})
    cell = table.tasks(found).rows[0][2]
    assert float(cell) < 1
    assert f'<td class="bad">{cell}</td>' in page


def test_tables_in_markdown(results: Results) -> None:
    found = Figures(results)
    text = table.markdown(table.every(found))
    assert "| method | speed-up |" in text
    assert "| suffix, γ 2 |" in text
    assert "## Identical texts" in text
    made = table.identical(found)
    # 4 base prompts, 2 of few for γ, temperature and context each, one batch of 2; two rounds
    assert made.rows[0] == ("suffix", "24", "24", "0", "0")
    narrow = table.overview(found).only("method", "τ", "speed-up")
    assert narrow.columns == ("method", "speed-up", "τ")
    assert narrow.speedups == (1,)


def test_spec_benchs_format_round_trip(results: Results, tmp_path: Path) -> None:
    way = Way("draft-model", 2)
    assert specbench.write(results, tmp_path / "answers.jsonl", way) == 4
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    made = [m for m in results.measurements if (m.way, m.series, m.round) == (way, 0, 0)]
    for row, one in zip(rows, made, strict=True):
        assert list(row) == ["question_id", "category", "answer_id", "model_id", "choices", "tstamp"]
        (choice,) = row["choices"]
        assert list(choice) == [
            "index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths",
        ]  # fmt: skip
        assert row["question_id"] == one.prompts[0]
        assert choice["new_tokens"] == [8]
        assert choice["decoding_steps"] == [one.counts.passes] == [len(choice["accept_lengths"])]
        assert sum(choice["accept_lengths"]) == 8
        assert choice["wall_time"] == [one.answers[0].turns[0].seconds]
    rates = [8 / m.answers[0].turns[0].seconds for m in made]
    assert specbench.tokens_per_second(rows) == pytest.approx(sum(rates) / len(rates))
    number = replace(made[0].answers[0], prompt="81")
    assert specbench.answer_row(number, "m", 0.0)["question_id"] == 81
    specbench.write(results, tmp_path / "plain.jsonl", PLAINLY)
    with pytest.raises(OptionError, match="eagle was not run over every prompt"):
        specbench.write(results, tmp_path / "none.jsonl", Way("eagle"))
