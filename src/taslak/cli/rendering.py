"""How settings, figures, progress and coloured text look. All but the answer goes to standard error."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from typing_extensions import Self

    from taslak.engine import Answer, Comparison, LanguageModel, Statistics, Weights

SEPARATOR = " · "
ACCEPTED, BONUS = "green", "yellow"
QUIET_SECONDS = 0.5
"""Work that is done sooner is not worth a line."""


def note(text: str) -> None:
    """One line for the person, not for the pipe."""
    print(text, file=sys.stderr, flush=True)


def settings(model: LanguageModel, answer: Answer, *, speculate: bool = True) -> str:
    """What was really used: model, method, γ, verification, weights, seed."""
    how = ["plain"]
    if speculate:
        how = [model.method]
        if model.draft_name:
            used = f" ({weights(model.draft_weights)})" if model.draft_weights else ""
            how.append(f"{model.draft_name}{used}")
        how += [f"exit layer {model.exit_layer}"] if model.exit_layer else []
        how.append("γ as it pays" if model.gamma is None else f"γ {model.gamma}")
        how += [f"branch {model.branch}"] if model.branch > 1 else []
        how += [f"{model.tree} tree"] if model.tree else []
        how += [f"nodes {model.nodes}"] if model.nodes else []
        how += [f"stop below {model.stop_below:g}"] if model.stop_below and model.gamma else []
        how.append(model.verify)
    return SEPARATOR.join([model.name, *how, weights(model.weights), f"seed {answer.seed}"])


def note_slow_path(used: Weights) -> None:
    """Say so where narrow weights are computed with in PyTorch: pip doesn't show that a build failed."""
    from taslak import native

    if used.path == "PyTorch" and used.dtype != "float32" and not native.available():
        note(f"{native.describe()}: correct, but slower")


def weights(used: Weights) -> str:
    """The width really used, what computes with it, and how much of it a token reads."""
    from taslak.models.loading.storage import megabytes

    return f"{used.dtype} {used.path}, {megabytes(used.bytes_per_token)} a token"


def statistics(used: Statistics) -> str:
    """What an answer took of the machine."""
    from taslak.models.loading.storage import megabytes

    peak = "unknown" if used.peak_bytes is None else megabytes(used.peak_bytes)
    return SEPARATOR.join(
        [
            f"peak memory {peak}",
            f"weights {megabytes(used.weight_bytes)}",
            f"read per token {megabytes(used.bytes_per_token)}",
            f"K/V cache {megabytes(used.cache_bytes)}",
        ]
    )


def figures(answer: Answer) -> str:
    """The closing line: how much, how fast, how often the drafts were right, where the time went."""
    counts, seconds = answer.counts, answer.seconds
    return SEPARATOR.join(
        [
            f"{len(answer.ids)} tokens",
            f"{answer.tokens_per_second:.1f} tokens/s",
            f"{counts.passes} passes",
            f"acceptance rate {number(counts.acceptance_rate)}",
            f"α {number(counts.alpha)}",
            f"1+α {number(counts.theoretical_speedup)}",
            *([f"estimated speed-up {number(answer.speedup)}"] if answer.speedup is not None else []),
            f"seconds in draft {seconds.draft:.2f} / pass {seconds.pass_:.2f} / other {seconds.other:.2f}",
            *([f"{answer.dropped} drafts dropped"] if answer.dropped else []),
        ]
    )


def number(value: float | None) -> str:
    """Two decimals; a dash where there is nothing to divide by."""
    return "–" if value is None else f"{value:.2f}"


def comparison(result: Comparison) -> None:
    """Both closing lines, whether the texts are identical and where they part if not, the speed ratio."""
    note(f"plain        {figures(result.plain)}")
    note(f"speculative  {figures(result.speculative)}")
    note(SEPARATOR.join([verdict(result), f"speculative is {number(result.speedup)} times as fast"]))


def verdict(result: Comparison) -> str:
    """ "identical", or why the texts are not."""
    if result.identical:
        return "identical"
    at = result.difference
    if at is None:
        return "not identical (rejection verification keeps the distribution, not the text)"
    alone, together = at.margins
    reason = "a near-tie" if at.near_tie else "NOT a near-tie: please report this"
    return (
        f"not identical: they part at token {at.position}, {reason} (score of the plain token over the "
        f"other: {alone:.1e} alone, {together:.1e} among other rows; rounding reaches {at.tolerance:.1e})"
    )


class PlainText:
    """An answer on standard output as it is decided."""

    def __init__(self) -> None:
        self._last = "\n"

    def write(self, text: str, accepted: bool) -> None:  # noqa: ARG002, the same call as ColouredText's
        """The next piece."""
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text[-1:] or self._last

    def close(self) -> None:
        """Ends the last line where the answer has not done so."""
        if self._last != "\n":
            sys.stdout.write("\n")
        sys.stdout.flush()


class ColouredText:
    """The same with accepted draft tokens and bonus tokens told apart.

    Where the output has no colours, runs of accepted tokens stand in ‹ › instead.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._colours = self._console.color_system is not None and not self._console.no_color
        self._plain = PlainText()
        self._open = False

    def write(self, text: str, accepted: bool) -> None:
        """The next piece: text of accepted draft tokens, or of a token the model gave by itself."""
        if self._colours:
            from rich.text import Text

            self._console.print(Text(text, style=ACCEPTED if accepted else BONUS), end="")
            self._console.file.flush()
        elif accepted != self._open:
            self._plain.write(("‹" if accepted else "›") + text, accepted)
            self._open = accepted
        else:
            self._plain.write(text, accepted)

    def close(self) -> None:
        """Ends the last run and prints the legend."""
        from rich.text import Text

        if self._open:
            self._plain.write("›", False)
        if self._colours:
            self._console.print()
        self._plain.close()
        legend = Text("legend: ")
        legend.append("accepted draft tokens" if self._colours else "‹accepted draft tokens›", ACCEPTED)
        legend.append(", ").append("bonus tokens", BONUS).append(" (the model's own)")
        error_console().print(legend)


def error_console() -> Console:
    """A console on standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def heading(text: str) -> None:
    """A line across standard output."""
    from rich.console import Console
    from rich.rule import Rule

    Console(highlight=False).print(Rule(text, align="left", characters="─"))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], *, right: Iterable[int] = ()) -> None:
    """A table on standard output; `right` numbers the columns that hold figures."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    figures = set(right)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        grid.add_column(column, justify="right" if i in figures else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(grid)


class _Bar:
    """A bar that is gone when its block ends."""

    _bar: Progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()


class ProgressBar(_Bar):
    """Downloads and conversions on standard error: a bar on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = error_console()
        self._bar: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._what = ""
        self._due = math.inf

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """See `taslak.models.loading.storage.Progress`."""
        if what != self._what:
            self._what, self._due = what, time.monotonic() + QUIET_SECONDS
            if self._task is not None:
                self._bar.remove_task(self._task)
                self._task = None
        if time.monotonic() < self._due:
            return
        if not self._console.is_terminal:
            note(f"{what} …")
            self._due = math.inf
        elif self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(what, completed=done, total=total)
        else:
            self._bar.update(self._task, completed=done, total=total)


class WorkBar(_Bar):
    """Long work in stages on standard error, with the time left: a bar on a terminal, a line now and then
    elsewhere."""

    def __init__(self, every: float = 15.0) -> None:
        """every: seconds between lines."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = error_console()
        self._bar: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._every = every
        self._what = ""
        self._task: TaskID | None = None
        self._first = 0
        self._began = self._due = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """See `taslak.models.loading.storage.Progress`."""
        now = time.monotonic()
        if what != self._what:  # what an earlier run has done says nothing about how fast this one is
            self._what, self._first, self._began, self._due = what, done, now, now + QUIET_SECONDS
            if self._console.is_terminal:
                self._bar.start()
                self._task = self._bar.add_task(what, completed=done, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif now >= self._due or done == total:
            self._due = now + self._every
            whole = "" if total is None else f" of {total}"
            note(f"{what}: {done}{whole}{self._left(done, total, now)}")

    def _left(self, done: int, total: int | None, now: float) -> str:
        if total is None or done == total or done <= self._first:
            return ""
        seconds = round((total - done) * (now - self._began) / (done - self._first))
        return f", {seconds // 60}:{seconds % 60:02d} left"
