"""How plots look: sizes, colours that the colour-blind can tell apart, and how they get into a page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

from taslak.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#a34d00")
"""Of Okabe and Ito (2008), yellow darkened for a white ground."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, GRID, EVEN = "#222222", "#dddddd", "#555555"

WIDTH, HEIGHT = 5.2, 3.7
"""Inches. So narrow that letters of 11 points are legible where a telephone shrinks the page."""

_STYLE: Mapping[str, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "svg.fonttype": "path",  # the reader may lack the font
    "svg.hashsalt": "taslak",  # the same figures give the same file
}


def require_plotting() -> None:
    """Raises OptionError where nothing can be drawn; to be asked before hours of work."""
    if find_spec("matplotlib") is None:
        raise OptionError(
            'the report needs matplotlib for its plots; install it (it is in the extra "train"), or give '
            "--no-report"
        )


@contextmanager
def style() -> Iterator[None]:
    """Within it everything is drawn the same."""
    from matplotlib import rc_context

    values: Any = dict(_STYLE)
    with rc_context(values):
        yield


def canvas(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """An empty plot; height in inches."""
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may ask for a display

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def look(names: Sequence[str], name: str) -> dict[str, Any]:
    """Colour and marker of one of these names, the same in every plot."""
    i = names.index(name)
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": name}


def even_line(axes: Axes, *, vertical: bool = False) -> None:
    """Where speculation is as fast as plain decoding."""
    draw = axes.axvline if vertical else axes.axhline
    draw(1.0, color=EVEN, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)


def legend(figure: Figure, axes: Axes) -> None:
    """Below the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 2 if max(map(len, labels)) > 14 or len(labels) == 4 else 3
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def svg_uri(figure: Figure) -> str:
    """The plot as a data URI: nothing outside the page is needed."""
    made = BytesIO()
    figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + b64encode(made.getvalue()).decode("ascii")


def png(figure: Figure) -> bytes:
    """Twice as fine as a screen."""
    made = BytesIO()
    figure.savefig(made, format="png", dpi=192, facecolor="white", metadata={"Software": None})
    return made.getvalue()
