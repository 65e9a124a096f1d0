"""The plots of a run, each made from `Figures`; None where the run has nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from taslak.bench import drawing
from taslak.bench.figures import Case, Figures, counted, speedup
from taslak.bench.grid import Setting
from taslak.control.theory import expected_tau, reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPEEDUP = "speed-up (× plain decoding)"

RARE = 10
"""A hazard seen fewer times than this isn't shown."""


def by_task(found: Figures) -> Figure | None:
    """A point a method and task, small ones for the prompts."""
    names, tasks = found.methods, found.tasks
    figure, axes = drawing.canvas(1.4 + len(tasks) * max(0.42, 0.13 * len(names)))
    for i, name in enumerate(names):
        look = drawing.look(names, name)
        shift = 0.7 * ((i + 0.5) / len(names) - 0.5)
        for row, task in enumerate(tasks):
            cases = [case for case in found.of(name) if case.task == task]
            if not cases:
                continue
            each = [case.speedup for case in cases]
            if len(each) > 1:
                axes.plot(each, [row + shift] * len(each), ".", color=look["color"], alpha=0.45, markersize=4)
            axes.plot(
                [speedup(cases)],
                [row + shift],
                look["marker"],
                color=look["color"],
                label=name if row == 0 else None,
            )
    axes.set_yticks(range(len(tasks)), [task.replace("-", " ") for task in tasks])
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    for row in range(1, len(tasks)):
        axes.axhline(row - 0.5, color=drawing.GRID, linewidth=0.8)
    axes.grid(False, axis="y")
    drawing.even_line(axes, vertical=True)
    axes.set_xlim(left=min(0.5, axes.get_xlim()[0]))
    axes.set_xlabel(SPEEDUP)
    axes.text(
        1.0, 1.01, "slower ◂ 1 ▸ faster", transform=axes.get_xaxis_transform(), ha="center", fontsize=10
    )
    drawing.legend(figure, axes)
    return figure


def hazards(found: Figures) -> Figure | None:
    """a_d over d, of the deepest fixed γ."""
    figure, axes = drawing.canvas()
    deepest = 0
    for name in found.methods:
        counts = found.deepest(name)
        if counts is None or not counts.hazards:
            continue
        deepest = max(deepest, len(counts.hazards))
        often = sum(offered >= RARE for offered in counts.offered_at)
        axes.plot(range(1, often + 1), counts.hazards[:often], **drawing.look(found.methods, name))
    if not deepest:
        return None
    _whole_numbers(axes, deepest)
    axes.set(xlabel="depth d (tokens)", ylabel="hazard $a_d$", ylim=(0, 1.02))
    drawing.legend(figure, axes)
    return figure


def tau(found: Figures) -> Figure | None:
    """Measured, and what the hazards say."""
    figure, axes = drawing.canvas()
    deepest = 0
    for name in found.methods:
        by, counts = found.by_gamma(name), found.deepest(name)
        if counts is None:
            continue
        look = drawing.look(found.methods, name)
        gammas = range(1, max(by) + 1)
        deepest = max(deepest, *by)
        theory = [expected_tau(counts.hazards, gamma, reach(counts)) for gamma in gammas]
        axes.plot(gammas, theory, "--", color=look["color"], linewidth=1.2)
        axes.plot([*by], [counted(cases).tau or 0.0 for cases in by.values()], linestyle="", **look)
    if not deepest:
        return None
    _whole_numbers(axes, deepest)
    axes.set(xlabel="drafted depth γ (tokens)", ylabel="τ (tokens a pass)")
    axes.set_ylim(bottom=0.9)
    drawing.legend(figure, axes)
    return figure


def speed_by_gamma(found: Figures) -> Figure | None:
    """Measured after the first token, and predicted from hazards and costs."""
    figure, axes = drawing.canvas()
    deepest = 0
    for name in found.methods:
        by = found.by_gamma(name)
        if not by:
            continue
        look = drawing.look(found.methods, name)
        deepest = max(deepest, *by)
        gammas = list(range(1, max(by) + 1))
        predicted = found.predicted(name, gammas)
        if predicted:
            axes.plot(gammas, predicted, "--", color=look["color"], linewidth=1.2)
        axes.plot([*by], [speedup(cases, after=True) for cases in by.values()], linestyle="", **look)
    if not deepest:
        return None
    drawing.even_line(axes)
    _whole_numbers(axes, deepest)
    axes.set(xlabel="drafted depth γ (tokens)", ylabel=SPEEDUP)
    axes.set_ylim(bottom=min(0.5, axes.get_ylim()[0]))
    drawing.legend(figure, axes)
    return figure


def cost_curve(found: Figures) -> Figure | None:
    """Milliseconds of a pass over its rows."""
    passes = found.results.passes
    if passes is None:
        return None
    figure, axes = drawing.canvas()
    milliseconds = [1e3 * seconds for seconds in passes.seconds]
    axes.plot(passes.rows, milliseconds, color=drawing.COLOURS[0], marker="o", label="measured")
    each = [milliseconds[0] * rows for rows in passes.rows]
    axes.plot(passes.rows, each, ":", color=drawing.EVEN, label="if every row cost as much as one row alone")
    axes.set_ylim(0, 1.15 * max(milliseconds))
    axes.set_xlim(0, max(passes.rows) + 1)
    axes.set(xlabel="rows of the pass (γ + 1)", ylabel="milliseconds")
    drawing.legend(figure, axes)
    return figure


def acceptance_by_temperature(found: Figures) -> Figure | None:
    return _along(found, lambda s: s.temperature, "temperature", _acceptance, "acceptance rate")


def acceptance_by_context(found: Figures) -> Figure | None:
    return _along(
        found, lambda s: s.context, "tokens of the prompt (0: as it is)", _acceptance, "acceptance rate"
    )


def speed_by_length(found: Figures) -> Figure | None:
    return _along(found, lambda s: s.max_tokens, "most tokens of the answer", speedup, SPEEDUP, ratio=True)


def speed_by_batch(found: Figures) -> Figure | None:
    return _along(found, lambda s: s.batch, "prompts answered together", speedup, SPEEDUP, ratio=True)


def memory(found: Figures) -> Figure | None:
    """Megabytes of the drafter's weights, and what they bring."""
    figure, axes = drawing.canvas()
    shown = False
    for name in found.methods:
        cases = found.of(name)
        if not cases or name not in found.results.draft_bytes:
            continue
        shown = True
        size = found.results.draft_bytes[name] / 1e6
        axes.plot([size], [speedup(cases)], linestyle="", **drawing.look(found.methods, name))
    if not shown:
        return None
    drawing.even_line(axes)
    axes.set(xlabel="weights of the drafter (MB)", ylabel=SPEEDUP)
    axes.set_xlim(left=-0.04 * max(axes.get_xlim()[1], 1.0))
    drawing.legend(figure, axes)
    return figure


def agreement(found: Figures) -> Figure | None:
    """1 − TV by task, a row a drafter and temperature."""
    every = found.results.agreements
    if not every:
        return None
    rows = list(dict.fromkeys((one.drafter, one.temperature) for one in every))
    tasks = list(dict.fromkeys(one.task for one in every))
    names = list(dict.fromkeys(drafter for drafter, _ in rows))
    figure, axes = drawing.canvas(1.6 + 0.42 * len(rows))
    for row, (drafter, temperature) in enumerate(rows):
        values = [one.overlap for one in every if (one.drafter, one.temperature) == (drafter, temperature)]
        look = drawing.look(names, drafter)
        axes.plot([min(values), max(values)], [row, row], color=look["color"], alpha=0.4, linewidth=5)
        axes.plot(
            values,
            [row] * len(values),
            linestyle="",
            marker=look["marker"],
            color=look["color"],
            clip_on=False,
        )
    axes.set_yticks(range(len(rows)), [f"{drafter}\nT = {temperature:g}" for drafter, temperature in rows])
    axes.tick_params(axis="y", labelsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(False, axis="y")
    axes.set_xlabel(f"1 − TV(p, q), a point for each of {len(tasks)} tasks")
    return figure


def _acceptance(cases: Sequence[Case]) -> float | None:
    return counted(cases).acceptance_rate


def _along(
    found: Figures,
    what: Callable[[Setting], float],
    label: str,
    value: Callable[[Sequence[Case]], float | None],
    value_label: str,
    *,
    ratio: bool = False,
) -> Figure | None:
    """A line a method along one part of the setting. ratio: 1 is even."""
    lines: Mapping[str, Mapping[float, Sequence[Case]]] = {
        name: by for name in found.methods if (by := found.along(name, what))
    }
    if not lines:
        return None
    figure, axes = drawing.canvas()
    for name, measured in lines.items():
        points = [(x, y) for x, cases in measured.items() if (y := value(cases)) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], **drawing.look(found.methods, name))
    marks = sorted({x for measured in lines.values() for x in measured})
    if ratio and marks[0] > 0:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(marks, [f"{x:g}" for x in marks])
    axes.set(xlabel=label, ylabel=value_label)
    if ratio:
        drawing.even_line(axes)
        axes.set_ylim(bottom=min(0.5, axes.get_ylim()[0]))
    else:
        axes.set_ylim(0, 1.02)
    drawing.legend(figure, axes)
    return figure


def _whole_numbers(axes: Axes, last: int) -> None:
    axes.set_xticks(range(1, last + 1))
    axes.set_xlim(0.7, last + 0.3)
