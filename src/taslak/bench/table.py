"""Results in short: the rows that the terminal, the Markdown file and the report show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taslak.bench.figures import Case, Figures, counted, speedup

NONE = "–"
MOST_LOSSES = 12


@dataclass(frozen=True, slots=True)
class Table:
    """rows: cells as they are printed, the first one naming the row; speedups: which columns hold them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    speedups: tuple[int, ...] = ()

    def only(self, *columns: str) -> Table:
        """Some of the columns, for where there is little room."""
        kept = [i for i, column in enumerate(self.columns) if column in columns]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        speedups = tuple(kept.index(i) for i in self.speedups if i in kept)
        return Table(self.title, tuple(self.columns[i] for i in kept), rows, speedups)


def overview(found: Figures) -> Table:
    """A line a method, over every prompt at the base setting; plain decoding is the first."""
    beside = found.of(found.methods[0])
    rate = sum(case.plain_tokens for case in beside) / sum(case.plain_seconds for case in beside)
    rows = [("plain", "1.00", NONE, NONE, f"{rate:.1f}", "1.00", NONE, NONE, NONE)]
    for method in found.methods:
        cases = found.of(method)
        if not cases:
            continue
        counts = counted(cases)
        each = [case.speedup for case in cases]
        own = sum(case.tokens for case in cases) / sum(case.seconds for case in cases)
        size = found.results.draft_bytes.get(method)
        same, asked, _ = found.identical(method)
        rows.append(
            (
                cases[0].way.name,
                f"{speedup(cases):.2f}",
                f"{min(each):.2f} … {max(each):.2f}",
                f"{sum(value < 1.0 for value in each)} of {len(each)}",
                f"{own:.1f}",
                _number(counts.tau),
                _number(counts.acceptance_rate),
                NONE if size is None else f"{size / 1e6:.0f} MB",
                f"{same} of {asked}" if asked else NONE,
            )
        )
    return Table(
        "Over all prompts",
        (
            "method",
            "speed-up",
            "by prompt",
            "slower",
            "tokens/s",
            "τ",
            "acceptance rate",
            "draft weights",
            "identical",
        ),
        tuple(rows),
        speedups=(1,),
    )


def tasks(found: Figures) -> Table:
    """Speed-up by task and method."""
    rows = []
    for task in found.tasks:
        cells = []
        for method in found.methods:
            cases = [case for case in found.of(method) if case.task == task]
            cells.append(f"{speedup(cases):.2f}" if cases else NONE)
        rows.append((task, *cells))
    return Table(
        "Speed-up by task", ("task", *found.methods), tuple(rows), tuple(range(1, 1 + len(found.methods)))
    )


def identical(found: Figures) -> Table:
    """Texts equal to plain decoding's over every cell, and those that part otherwise than by a near-tie."""
    rows = []
    for method in found.methods:
        same, asked, wrong = found.identical(method)
        if asked:
            rows.append((method, str(asked), str(same), str(asked - same - wrong), str(wrong)))
    columns = ("method", "answers compared", "identical", "part at a near-tie", "part otherwise")
    return Table("Identical texts", columns, tuple(rows))


def losses(found: Figures) -> Table:
    """Where speculation was slower than plain decoding, the worst first."""
    every = found.losses()
    rows = [_loss(case) for case in every[:MOST_LOSSES]]
    more = f"; the worst {MOST_LOSSES}" if len(every) > MOST_LOSSES else ""
    title = f"Slower than plain decoding: {len(every)} of {len(found.main)}{more}"
    return Table(title, ("prompt", "method", "speed-up", "acceptance rate", "α"), tuple(rows), (2,))


def agreement(found: Figures) -> Table:
    """By drafter, temperature and task."""
    rows = tuple(
        (
            one.drafter,
            f"{one.temperature:g}",
            one.task,
            f"{one.overlap:.2f}",
            f"{one.top1:.2f}",
            _number(one.kl),
            _number(one.outside),
            str(one.places),
        )
        for one in found.results.agreements
    )
    columns = (
        "drafter",
        "temperature",
        "task",
        "1 − TV",
        "same top-1",
        "KL(p‖q), nats",
        "p outside q",
        "places",
    )
    return Table("How far drafter and model agree", columns, rows)


def every(found: Figures) -> list[Table]:
    """Those that have rows."""
    made = [overview(found), tasks(found), identical(found), losses(found), agreement(found)]
    return [table for table in made if table.rows]


def markdown(tables: Sequence[Table]) -> str:
    """Each under its title; figures right-aligned."""
    parts = []
    for table in tables:
        head = "| " + " | ".join(table.columns) + " |"
        rule = "| " + " | ".join(["---", *["---:"] * (len(table.columns) - 1)]) + " |"
        body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
        parts.append("\n".join([f"## {table.title}", "", head, rule, *body]))
    return "\n\n".join(parts) + "\n"


def _loss(case: Case) -> tuple[str, ...]:
    counts = case.counts
    return (
        ", ".join(case.prompts),
        case.way.name,
        f"{case.speedup:.2f}",
        _number(counts.acceptance_rate),
        _number(counts.alpha),
    )


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
