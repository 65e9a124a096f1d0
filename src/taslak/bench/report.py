"""One page that needs nothing else: figures, plots and tables of a run, and the same plots as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from taslak.bench import drawing, gallery, table
from taslak.bench.figures import Figures, speedup
from taslak.bench.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE = Path(__file__).with_name("report.html.j2")


def write(results: Results, path: Path, pictures: Path | None = None) -> list[Path]:
    """The report, and with `pictures` a PNG of each plot in that folder. -> the files.

    Raises OptionError without matplotlib, ValueError where nothing was compared with plain decoding.
    """
    drawing.require_plotting()
    found = Figures(results)
    drawn = gallery.draw_all(found)
    path.write_text(page(found, drawn), encoding="utf-8")
    files = [path]
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, (_, figure) in drawn.items():
            with drawing.style():
                files.append(pictures / f"{name}.png")
                files[-1].write_bytes(drawing.png(figure))
    return files


def page(found: Figures, drawn: Mapping[str, tuple[gallery.Plot, Figure]]) -> str:
    """The HTML. No script, no address: everything is in it."""
    with drawing.style():
        pictures = [(plot, drawing.svg_uri(figure)) for plot, figure in drawn.values()]
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(_PAGE.read_text(encoding="utf-8")).render(
        about=found.results.about,
        tiles=_tiles(found),
        pictures=pictures,
        overview=table.overview(found),
        tables=[made for made in table.every(found) if made.title != table.overview(found).title],
        below_one=_below_one,
    )


def _tiles(found: Figures) -> list[tuple[str, str, bool]]:
    """What a hurried reader takes home: figure, words, whether it is bad news."""
    over_all = {method: speedup(found.of(method)) for method in found.methods if found.of(method)}
    best = max(over_all, key=lambda method: over_all[method])
    by_task = {
        task: speedup([case for case in found.of(best) if case.task == task])
        for task in found.tasks
        if any(case.task == task for case in found.of(best))
    }
    worst, top = min(by_task, key=by_task.__getitem__), max(by_task, key=by_task.__getitem__)
    tiles = [
        (f"{over_all[best]:.2f} ×", f"{best}: the fastest over all prompts", over_all[best] < 1.0),
        (f"{by_task[top]:.2f} ×", f"{best} on {top}, its best task", by_task[top] < 1.0),
        (f"{by_task[worst]:.2f} ×", f"{best} on {worst}, its worst task", by_task[worst] < 1.0),
    ]
    same, asked, wrong = (sum(of) for of in zip(*map(found.identical, found.methods), strict=True))
    if asked:
        tiles.append((f"{same} of {asked}", "answers identical with plain decoding's", wrong > 0))
    return tiles


def _below_one(cell: str) -> bool:
    try:
        return float(cell) < 1.0
    except ValueError:
        return False
