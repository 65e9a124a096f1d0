"""Options that more than one command takes."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_MODEL = "smollm2-135m-instruct"
"""`taslak.models.loading.DEFAULT_PACK`, too heavy to import for --help; a test compares both."""

DEFAULT_DTYPE = "auto"
"""`taslak.load`'s, compared by the same test."""

Model = Annotated[
    str,
    typer.Option(help="A folder in Hugging Face layout, a .gguf file, a Hub id, or a pack.", metavar="NAME"),
]

Dtype = Annotated[
    str,
    typer.Option(
        help="Of the weights. float32 runs in PyTorch, the others in the native kernels on the CPU; int4: a "
        "GGUF's own 4-bit weights; auto: the checkpoint's own.",
        metavar="auto|float32|bfloat16|int8|int4",
    ),
]

Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Threads to compute with; default: the physical cores there are. Same text."
    ),
]


def use_threads(count: int | None) -> None:
    """Give both the kernels and PyTorch this many threads; None leaves them alone. Raises OptionError."""
    if count is None:
        return
    import torch

    from taslak import native

    native.set_threads(count)
    torch.set_num_threads(count)
