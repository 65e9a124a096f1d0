"""The `taslak` command: its subcommands and what stands before them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from taslak.cli import models
from taslak.cli.advise import advise
from taslak.cli.bench import bench
from taslak.cli.chat import chat
from taslak.cli.demo import demo
from taslak.cli.errors import run
from taslak.cli.export import export
from taslak.cli.generate import generate
from taslak.cli.info import info
from taslak.cli.serve import serve
from taslak.cli.stats import stats
from taslak.cli.train import train
from taslak.cli.verify import verify

app = typer.Typer(
    name="taslak",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lossless speculative decoding of language models: the same text, sooner.",
)
app.command()(generate)
app.command()(serve)
app.command()(chat)
app.command()(demo)
app.command()(train)
app.command()(verify)
app.command()(bench)
app.command()(advise)
app.command()(stats)
app.command()(export)
app.command()(info)
app.add_typer(models.app, name="models")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"taslak {version('taslak')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")
    ] = False,
) -> None:
    """Options before any command; both are dealt with elsewhere: --version above, --debug in `errors.run`."""


def main(args: Sequence[str] | None = None) -> None:
    """The entry point. Exit codes: 0, 1 a failure of taslak's, 2 a mistake in what was asked, 130 Ctrl-C."""
    sys.exit(run(typer.main.get_command(app), sys.argv[1:] if args is None else args))
