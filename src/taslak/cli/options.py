"""Options that more than one command takes."""

from __future__ import annotations

from typing import Annotated

import typer

DRAFTING = "Speculation"
"""The panel of options that say how to draft."""

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


Device = Annotated[str, typer.Option(help="Where to run, as PyTorch names it.", metavar="cpu|cuda")]

Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="In PyTorch: the same bits whatever is computed side by side; slower. The native kernels "
        "give them anyway.",
    ),
]

Method = Annotated[
    str | None,
    typer.Option(
        help="ngram, suffix, draft-model, cross-vocab, tli, slem, early-exit, medusa, eagle or eagle3, or "
        "several joined by +: with --gamma asked in this order, else look-ups first, then the one that gains "
        "most. fallback is a look-up and draft-model. auto (the default): suffix, and behind it what --draft "
        "or --exit-layer names, or the head that comes with taslak for the model.",
        metavar="NAME",
        rich_help_panel=DRAFTING,
    ),
]

Draft = Annotated[
    str | None,
    typer.Option(
        help="A smaller model with the same tokenizer, or the folder of a head trained for the model.",
        metavar="NAME",
        rich_help_panel=DRAFTING,
    ),
]

CrossVocab = Annotated[
    bool,
    typer.Option(
        "--cross-vocab",
        help="Let the smaller model have another tokenizer. It can draft in two ways then, methods tli and "
        "slem; without --method by whichever is worth more, answer by answer.",
        rich_help_panel=DRAFTING,
    ),
]

DraftDtype = Annotated[
    str | None,
    typer.Option(
        help="Of the smaller model's weights; default: as --dtype.",
        metavar="NAME",
        rich_help_panel=DRAFTING,
    ),
]

Gamma = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Drafted depth of every pass, 1 to 16. Default: chosen as the answer goes, from what drafts are "
        "worth and what they cost here; nothing where it doesn't pay.",
        rich_help_panel=DRAFTING,
    ),
]

Branch = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Children of an expanded node of the draft. Default: the head's own, else 1, a linear "
        "draft; 4 with --tree or --nodes.",
        rich_help_panel=DRAFTING,
    ),
]

Tree = Annotated[
    str | None,
    typer.Option(
        metavar="static|dynamic",
        help="Which tree a head drafts: its shape fixed beforehand, or grown and re-ranked by confidence "
        "(the default).",
        rich_help_panel=DRAFTING,
    ),
]

Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most nodes of a draft. Default: gamma times branch.",
        rich_help_panel=DRAFTING,
    ),
]

ExitLayer = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How many of the model's own layers method early-exit drafts with, 1 to all but one. "
        "Default: what its head was trained for; without a head nine tenths.",
        rich_help_panel=DRAFTING,
    ),
]

FixedGamma = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Drafted depth of every pass, 1 to 16. Default: the head's own, else 5.",
        rich_help_panel=DRAFTING,
    ),
]
"""Of a command that always drafts as deep."""

FixedStopBelow = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="End a draft where the drafter's joint confidence falls under this; same text. Default: the "
        "head's own, else 0.",
        rich_help_panel=DRAFTING,
    ),
]

StopBelow = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="End a draft where the drafter's joint confidence falls under this; same text. Default: chosen "
        "with the depth; with --gamma the head's own, else 0.",
        rich_help_panel=DRAFTING,
    ),
]

Lookup = Annotated[
    str | None,
    typer.Option(
        help="What methods auto (suffix by default) and fallback (ngram) try first.",
        metavar="ngram|suffix",
        rich_help_panel=DRAFTING,
    ),
]


Verify = Annotated[
    str,
    typer.Option(
        help="coupled: the same text as without speculation. rejection: the same distribution.",
        metavar="coupled|rejection",
        rich_help_panel=DRAFTING,
    ),
]


def check_price(per_hour: float | None) -> None:
    """Raise OptionError for what is no price."""
    if per_hour is not None and not 0.0 <= per_hour < float("inf"):
        from taslak.errors import OptionError

        raise OptionError(f"--price-per-hour is {per_hour}; expected a price from 0 up")


def use_threads(count: int | None) -> None:
    """Give both the kernels and PyTorch this many threads; None leaves them alone. Raises OptionError."""
    if count is None:
        return
    import torch

    from taslak import native

    native.set_threads(count)
    torch.set_num_threads(count)
