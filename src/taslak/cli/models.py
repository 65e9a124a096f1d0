"""`taslak models`: the packs, what they are and whether they are here."""

from __future__ import annotations

from typing import Annotated

import typer

from taslak.cli import rendering
from taslak.errors import ModelNotFound

app = typer.Typer(help="The built-in models (packs): list them, fetch one, say what one is.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A pack's name, as `taslak models` lists it.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """The built-in models (packs): list them, fetch one, say what one is."""
    if context.invoked_subcommand is None:
        list_packs()


@app.command("list")
def list_packs() -> None:
    """List the packs with size, licence and whether they are here. The same as `taslak models` alone."""
    from taslak.models.loading import cache_home, packs
    from taslak.models.loading.storage import megabytes

    rendering.table(
        ["name", "size", "licence", "here"],
        [
            [pack.name, megabytes(pack.bytes), pack.licence, "yes" if pack.is_here else "no"]
            for pack in packs().values()
        ],
        right=[1],
    )
    rendering.note(f"kept in {cache_home()} (set TASLAK_HOME to change it)")


@app.command()
def pull(name: Name) -> None:
    """Fetch a pack, and print where it lies."""
    from taslak.models.loading import fetch

    with rendering.ProgressBar() as progress:
        path = fetch(name, progress=progress)
    print(path)


@app.command()
def info(name: Name) -> None:
    """Say what a pack is: licence, size, digest, sources, where it lies."""
    from taslak.models.loading import find_pack, packs
    from taslak.models.loading.storage import megabytes

    pack = find_pack(name)
    if pack is None:
        raise ModelNotFound(f"there is no pack {name!r}; the packs are: {', '.join(packs())}")
    sources = [f"the Hub, {pack.hub}"] if pack.hub else []
    sources.append(f"data wheels, {pack.wheel}" + (f", parts 1 to {pack.parts}" if pack.parts > 1 else ""))
    facts = {
        "name": pack.name,
        "description": pack.description,
        "licence": pack.licence,
        "file": pack.file,
        "size": f"{megabytes(pack.bytes)} ({pack.bytes} bytes)",
        "sha256": pack.sha256,
        "sources": "; ".join(sources),
        "here": str(pack.path) if pack.is_here else f"no (taslak models pull {pack.name})",
    }
    for key, value in facts.items():
        print(f"{key:<12} {value}")
    if pack.notice:
        print(f"\n{pack.notice.strip()}")
