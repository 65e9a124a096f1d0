"""Which plots a report shows, in which order, and the words beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taslak.bench import drawing, plots
from taslak.bench.figures import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE = "Whole call, prefill included. Dashed: as fast as plain decoding; below it is a loss."


@dataclass(frozen=True, slots=True)
class Plot:
    """name: of its file; text: what it shows, in a sentence or two, and its alternative text."""

    name: str
    title: str
    text: str
    draw: Callable[[Figures], Figure | None]


PLOTS = (
    Plot(
        "speedup-by-task",
        "Speed-up by task",
        "Tokens a second over plain decoding's. Small points are single prompts; left of the dashed line "
        "speculation lost.",
        plots.by_task,
    ),
    Plot(
        "hazards",
        "Hazards by depth",
        "How often the drafted token at depth d was accepted, the ones before it being accepted; at the "
        f"deepest fixed γ. Depths reached fewer than {plots.RARE} times are left out.",
        plots.hazards,
    ),
    Plot(
        "tau-by-gamma",
        "τ against γ",
        "Tokens a pass emits. Points: measured. Dashed: 1 + Σ Π of the hazards.",
        plots.tau,
    ),
    Plot(
        "speedup-by-gamma",
        "Speed-up against γ",
        "After the first token. Points: measured. Dashed: predicted from the hazards, the cost curve and the "
        "seconds of drafting.",
        plots.speed_by_gamma,
    ),
    Plot(
        "cost-curve",
        "What a pass costs",
        "Time of a pass of the model over its rows. Speculation lives on the gap between this curve and the "
        "dotted line.",
        plots.cost_curve,
    ),
    Plot(
        "speedup-by-length",
        "Speed-up against output length",
        WHOLE,
        plots.speed_by_length,
    ),
    Plot("speedup-by-batch", "Speed-up against batch size", WHOLE, plots.speed_by_batch),
    Plot(
        "acceptance-by-temperature",
        "Acceptance against temperature",
        "Accepted over drafted depth.",
        plots.acceptance_by_temperature,
    ),
    Plot(
        "acceptance-by-context",
        "Acceptance against context length",
        "Accepted over drafted depth; prompts padded with neutral text to so many tokens.",
        plots.acceptance_by_context,
    ),
    Plot(
        "memory",
        "Draft memory against speed-up",
        "What a drafter's weights take beside the model's, and what they bring over all prompts.",
        plots.memory,
    ),
    Plot(
        "agreement",
        "How far drafter and model agree",
        "1 − TV(p, q): the chance that a drafted token survives rejection verification. At temperature 0: "
        "how often both choose the same token.",
        plots.agreement,
    ),
)


def draw_all(found: Figures) -> dict[str, tuple[Plot, Figure]]:
    """Those that the run has something for, by name."""
    with drawing.style():
        made = {plot.name: (plot, plot.draw(found)) for plot in PLOTS}
    return {name: (plot, figure) for name, (plot, figure) in made.items() if figure is not None}
