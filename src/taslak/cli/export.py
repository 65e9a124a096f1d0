"""`taslak export`: a drafter handed over to another engine, with the command that serves it there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from taslak.cli import rendering


def export(
    draft: Annotated[
        str,
        typer.Argument(
            metavar="DRAFT",
            help="The folder or name of a head, ngram, suffix, or a draft model: a folder, a .gguf file, a "
            "pack or a Hub id.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(metavar="vllm|sglang|llama.cpp|tensorrt-llm|tgi", help="The engine that will serve."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model that is drafted for, as the engine knows it: a Hub id, a folder, a .gguf file. "
            "Default: what the head was made for, where that is one.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The same model here, as `taslak stats` names it. Default: what the head was made for.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files go. Default: a folder here, named after both."),
    ] = None,
    gamma: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Drafted depth. Default: the best by what requests here took, else by the evaluation of the "
            "head's training, else what its file says.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hand a drafter over to another engine: write its files, and print the command that serves with it."""
    with rendering.ProgressBar() as fetching:
        from taslak.control.history import History
        from taslak.interop.handover import hand_over

        made = hand_over(
            draft,
            to,
            model=model,
            target=target,
            out=out,
            gamma=gamma,
            history=History(),
            progress=fetching,
        )
    if as_json:
        print(json.dumps(made.as_json(), ensure_ascii=False))
        return
    for note in (f"{made.kind} for {made.engine}, in {made.folder}", f"γ {made.gamma}: {made.gamma_from}"):
        rendering.note(note)
    for note in made.notes:
        rendering.note(f"note: {note}")
    for command in (*made.before, made.command):
        print(command)
