"""`taslak stats`: what speculation did over time, from the history."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taslak.cli import rendering
from taslak.cli.options import check_price
from taslak.cli.rendering import number

if TYPE_CHECKING:
    from taslak.control.record import Record
    from taslak.control.summary import Summary
    from taslak.core.counts import Counts

UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
PLOTS = (".png", ".svg")
BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, TREND = 60, 6, 10
"""Characters of the plot, and of a group's trend."""
DEPTHS = 6
"""Hazards that fit into a line; --json has them all."""
SQLITE = b"SQLite format 3\0"


def stats(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="7d|2026-11-01", help="Only later: minutes, hours, days, weeks, or a day (UTC)."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="method|task|temperature|context|model|day", help="Rows of the tables.")
    ] = "method",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only this model.")] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of the machine, in any currency: adds the cost of a million tokens."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the acceptance over time into this .png or .svg file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: history.sqlite in the cache folder (see `taslak info`)."),
    ] = None,
) -> None:
    """Show how often drafts were accepted, what that gained, and what it cost, over time."""
    start = None if since is None else _since(since)
    _check(price_per_hour, plot, history)
    from taslak.control.history import History
    from taslak.control.summary import add_up, group, over_time

    kept = History(history)
    records = kept.select(since=start, model=model)
    groups = group(records, by)
    first = records[0].ended if records else time.time()
    last = records[-1].ended if records else first
    parts = over_time(records, first, last, WIDTH)
    if plot is not None and records:
        _draw(plot, groups, first, last)
    if as_json:
        told = {
            "history": str(kept.path),
            "by": by,
            "groups": [add_up(key, of).as_json(price_per_hour) for key, of in groups.items()],
            "total": add_up("total", records).as_json(price_per_hour),
            "over_time": {
                "from": first,
                "to": last,
                "acceptance_rate": [part.acceptance_rate for part in parts],
            },
        }
        print(json.dumps(told, ensure_ascii=False, allow_nan=False))
    elif records:
        _tables(by, groups, first, last, price_per_hour)
        _over_time(parts, first, last)
    else:
        which = "" if since is None and model is None else " that was asked for"
        print(f"nothing{which} recorded yet in {kept.path}: answers add to it as they are made")


def _tables(
    by: str, groups: Mapping[str, Sequence[Record]], first: float, last: float, price: float | None
) -> None:
    """How often drafts were accepted; what that gained; where drafts and seconds end."""
    from taslak.control.summary import add_up, over_time

    parts = list(groups.items())
    if len(parts) > 1:
        parts.append(("total", [record for of in groups.values() for record in of]))
    sums = [add_up(key, of) for key, of in parts]
    names = [_short(of.key) for of in sums]
    trends = ["".join(_bar(counts) for counts in over_time(of, first, last, TREND)) for _, of in parts]
    rendering.table(
        [by, "requests", "tokens", "accepted", "α", "τ", "over time"],
        [
            [
                *(name, str(of.requests), _many(of.tokens), number(of.counts.acceptance_rate)),
                *(number(of.counts.alpha), number(of.counts.tau), trend),
            ]
            for name, of, trend in zip(names, sums, trends, strict=True)
        ],
        right=range(1, 6),
    )
    heads = [by, "tokens/s", "speed-up", "draft memory", *([] if price is None else ["cost 1M", "plain 1M"])]
    gains = [[name, *_gains(of, price)] for name, of in zip(names, sums, strict=True)]
    rendering.table(heads, gains, right=range(1, 6))
    heads = [by, "draft / pass / other", "hazards by depth"]
    ends = [[name, _shares(of), _hazards(of)] for name, of in zip(names, sums, strict=True)]
    rendering.table(heads, ends, right=[1])


def _gains(summary: Summary, price: float | None) -> list[str]:
    """Speed, extra memory, and cost."""
    from taslak.models.loading.storage import megabytes

    cells = [
        "–" if summary.tokens_per_second is None else f"{summary.tokens_per_second:.1f}",
        number(summary.speedup),
        megabytes(summary.draft_bytes),
    ]
    if price is not None:
        costs = (summary.cost(price), summary.plain_cost(price))
        cells += [number(cost) if cost is None or cost >= 1.0 else f"{cost:.3g}" for cost in costs]
    return cells


def _shares(summary: Summary) -> str:
    """Where the time went."""
    seconds, whole = summary.seconds, summary.seconds.total or 1.0
    return " / ".join(f"{part / whole:.0%}" for part in (seconds.draft, seconds.pass_, seconds.other))


def _hazards(summary: Summary) -> str:
    return " ".join(number(hazard) for hazard in summary.counts.hazards[:DEPTHS])


def _many(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:.1f}M"


def _over_time(parts: Sequence[Counts], first: float, last: float) -> None:
    """The acceptance rate as bars of text, from the first record to the last."""
    print("acceptance rate over time (UTC)")
    rates = [part.acceptance_rate for part in parts]
    for row in reversed(range(HEIGHT)):
        eighths = [0 if rate is None else round(rate * HEIGHT * 8) - 8 * row for rate in rates]
        label = {HEIGHT - 1: "1.0", 0: "0.0"}.get(row, "")
        print(f"{label:>4} │{''.join(BARS[min(max(eighth, 0), 8)] for eighth in eighths)}".rstrip())
    print(f"     └{'─' * len(rates)}")
    print(f"      {_day(first):<{len(rates) - 16}}{_day(last)}")


def _bar(counts: Counts) -> str:
    """One character a stretch of time: blank where nothing was drafted, the lowest bar for none accepted."""
    rate = counts.acceptance_rate
    return " " if rate is None else BARS[1 + round(rate * 7)]


def _draw(file: Path, groups: Mapping[str, Sequence[Record]], first: float, last: float) -> None:
    """The acceptance rate of every group over time, as a picture."""
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may ask for a display

    from taslak.control.summary import over_time
    from taslak.models.loading.storage import full_disk_is_an_error

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    middle = (last - first) / WIDTH
    times = [datetime.fromtimestamp(first + (i + 0.5) * middle, timezone.utc) for i in range(WIDTH)]
    for key, records in groups.items():
        rates = [part.acceptance_rate for part in over_time(records, first, last, WIDTH)]
        points = [(at, rate) for at, rate in zip(times, rates, strict=True) if rate is not None]
        if points:
            axes.plot(*zip(*points, strict=True), ".-", label=key or "(none)")
    axes.set(ylabel="acceptance rate (accepted / drafted depth)", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.tick_params("x", rotation=20)
    axes.legend()
    with full_disk_is_an_error(file.parent, "the plot"):
        figure.savefig(file, dpi=120)
    rendering.note(f"drawn into {file}")


def _check(price_per_hour: float | None, plot: Path | None, history: Path | None) -> None:
    """Raise OptionError for what can't be done."""
    from importlib.util import find_spec

    from taslak.errors import OptionError

    check_price(price_per_hour)
    if plot is not None:
        if plot.suffix.lower() not in PLOTS:
            raise OptionError(f"--plot is {plot}; expected a file that ends in {' or '.join(PLOTS)}")
        if not plot.absolute().parent.is_dir():
            raise OptionError(f"--plot is {plot}, but there is no folder {plot.parent}")
        if find_spec("matplotlib") is None:
            raise OptionError(
                "--plot needs matplotlib, which the extra `train` brings (README); or leave --plot out"
            )
    if history is not None:  # a slip of the hand must not have a file renamed as a damaged history
        if not history.is_file():
            raise OptionError(f"--history is {history}, which is no file")
        with history.open("rb") as file:
            head = file.read(len(SQLITE))
        if head not in (SQLITE, b""):
            raise OptionError(
                f"--history is {history}, which is no SQLite file; expected a history of taslak"
            )


def _since(text: str) -> float:
    """Unix seconds of "7d" ago, or of a day or time (UTC where it doesn't say). Raises OptionError."""
    from taslak.errors import OptionError

    amount, unit = text[:-1], text[-1:]
    if unit in UNITS and amount.replace(".", "", 1).isdecimal():
        return time.time() - float(amount) * UNITS[unit]
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"--since is {text!r}; expected an age like 90m, 12h, 7d or 2w, or a day like 2026-11-01"
        ) from error
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _short(name: str) -> str:
    """Names of models may be paths: the end of one tells more."""
    return "(none)" if not name else name if len(name) <= 18 else "…" + name[-17:]
