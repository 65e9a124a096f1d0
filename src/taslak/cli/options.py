"""Options that more than one command takes."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_MODEL = "smollm2-135m-instruct"
"""`taslak.models.loading.DEFAULT_PACK`, too heavy to import for --help; a test compares both."""

Model = Annotated[
    str,
    typer.Option(help="A folder in Hugging Face layout, a .gguf file, a Hub id, or a pack.", metavar="NAME"),
]
