"""`taslak train`: a drafter for a model, from prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taslak.cli import rendering
from taslak.cli.options import DEFAULT_DTYPE, DEFAULT_MODEL, Dtype, Model, Threads, use_threads
from taslak.errors import OptionError

if TYPE_CHECKING:
    from taslak.training import Trained

TEXTS, HEAD, LOOP, RESULT = "Texts", "The head", "Training", "Result"


def train(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="medusa|eagle|eagle3|early-exit|draft-model", help="What to train.", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the head goes, and the work between stages.")
    ],
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Annotated[
        str, typer.Option(help="Where to run; several GPUs by torchrun.", metavar="cpu|cuda")
    ] = "cpu",
    threads: Threads = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="What the model answers to train on: JSONL of prompt or messages, lines of text, or a "
            "folder of text and code files.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Answers to train on instead: JSONL of prompt and answer, or answers.jsonl of another run; "
            "may be given several times.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the model's hidden states are kept; runs on the same texts may share them. Default: "
            "in OUT.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only answer part I (from 0) of N of the prompts, on this machine; then stop.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X",
            help="Of the answers; given several times, in turns. Default: 0.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of an answer.", rich_help_panel=TEXTS)
    ] = 256,
    max_length: Annotated[
        int,
        typer.Option(metavar="N", help="Texts are cut here; longer prompts left out.", rich_help_panel=TEXTS),
    ] = 1024,
    batch: Annotated[
        int, typer.Option(metavar="N", help="Prompts answered together.", rich_help_panel=TEXTS)
    ] = 32,
    held_out: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Prompts kept out of training, answered at temperature 0. Default: 5 %, 4 to 64.",
            rich_help_panel=TEXTS,
        ),
    ] = None,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens the head can say, the most frequent ones of the texts; 0 is all. Default: 8192.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="medusa: how many. Default: 4.", rich_help_panel=HEAD)
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="medusa: residual blocks of a head. Default: 1.", rich_help_panel=HEAD
        ),
    ] = None,
    unembedding: Annotated[
        str | None,
        typer.Option(
            metavar="own|shared|target",
            help="medusa: each head's own, one for all, or the model's. Default: own.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    ttt: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="eagle, eagle3: rounds on the head's own output, the depths it learns to draft. Default: 3.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    feature_weight: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="eagle: what the distance to the model's next hidden state counts. Default: 0.1.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    inner_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="eagle, eagle3: width of its layer's MLP. Default: the model's.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    captures: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="eagle3: the layers it reads, from 0 on. Default: low, middle and high.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    exit_layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="early-exit: layers that draft. Default: a quarter of them.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="early-exit: of the adapter; 0 is none. Default: 64.", rich_help_panel=HEAD
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="draft-model: layers it starts from, from 0 on. Default: every eighth of the model's.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What to go on from: a head of this kind, a folder or one that comes with taslak; for "
            "draft-model the folder of a checkpoint of the same tokenizer.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(metavar="N", help="Passes over the texts.", rich_help_panel=LOOP)
    ] = 3,
    batch_tokens: Annotated[
        int,
        typer.Option(metavar="N", help="Tokens of a step, of each process.", rich_help_panel=LOOP),
    ] = 2048,
    learning_rate: Annotated[
        float, typer.Option(metavar="X", help="The highest.", rich_help_panel=LOOP)
    ] = 1e-3,
    seed: Annotated[
        int, typer.Option(metavar="N", help="The same seed, the same weights.", rich_help_panel=LOOP)
    ] = 0,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="float32|bfloat16",
            help="What training computes in. Default: bfloat16 where the hardware multiplies it.",
            rich_help_panel=LOOP,
        ),
    ] = None,
    evaluate: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Held-out prompts decoded at the end, with and without the head; 0 is none.",
            rich_help_panel=RESULT,
        ),
    ] = 8,
    gamma: Annotated[int, typer.Option(metavar="N", help="Drafted depth there.", rich_help_panel=RESULT)] = 4,
    plot: Annotated[
        bool, typer.Option("--plot/--no-plot", help="Draw curves.png.", rich_help_panel=RESULT)
    ] = True,
) -> None:
    """Train a drafter for a model: it answers prompts, and a small network learns to say its next tokens.

    Can be stopped at any time, and goes on where it was when it is started with the same options.
    """
    with rendering.WorkBar() as working, rendering.ProgressBar() as fetching:
        from taslak.training import Schedule, TrainingOptions
        from taslak.training import train as run
        from taslak.training.answers import Shard

        use_threads(threads)
        given = {
            "heads": heads,
            "blocks": blocks,
            "unembedding": unembedding,
            "ttt": ttt,
            "feature_weight": feature_weight,
            "inner_size": inner_size,
            "captures": _numbers("captures", captures),
            "exit_layer": exit_layer,
            "rank": rank,
            "layers": _numbers("layers", layers),
        }
        options = TrainingOptions(
            kind=kind,
            out=out,
            model=model,
            prompts=prompts,
            texts=tuple(texts or ()),
            store=store,
            init=init,
            dtype=dtype,
            device=device,
            shard=None if shard is None else Shard.parse(shard),
            temperatures=tuple(temperature or (0.0,)),
            max_tokens=max_tokens,
            max_length=max_length,
            batch=batch,
            held_out=held_out,
            draft_vocab=draft_vocab,
            evaluate=evaluate,
            gamma=gamma,
            plot=plot,
            schedule=Schedule(
                epochs=epochs,
                batch_tokens=batch_tokens,
                learning_rate=learning_rate,
                seed=seed,
                precision=precision,
            ),
            settings={name: value for name, value in given.items() if value is not None},
        )
        result = run(options, working, fetching)
    _tell(result)


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise OptionError(f"--{name} is {text!r}; expected layer numbers with commas between, as in 1,14,26")
    return tuple(int(part) for part in parts)


def _tell(result: Trained) -> None:
    """What came out, in a few lines."""
    if result.too_long:
        rendering.note(f"{result.too_long} prompts were too long and left out (--max-length)")
    if result.curves:
        last = [point for point in result.curves if point.held_out][-1]
        rates = ", ".join(f"{a:.3f}" for a in last.accuracy)
        rendering.note(
            f"{result.answers} answers, held-out ones included · held-out loss {last.loss:.3f} · "
            f"accuracy {rates}"
        )
    else:
        print(f"{result.answers} answers in {result.out}")
    found = result.evaluation
    if found is not None:
        rendering.note(
            rendering.SEPARATOR.join(
                [
                    f"{found.prompts} held-out prompts",
                    f"method {found.method} γ {found.gamma}",
                    f"hazards {', '.join(f'{a:.2f}' for a in found.hazards)}",
                    f"τ {rendering.number(found.tau)}",
                    f"{found.tokens_per_second:.1f} tokens/s, plain {found.plain_tokens_per_second:.1f}",
                    f"{found.speedup:.2f} times as fast",
                    f"{found.identical} of {found.prompts} identical",
                ]
            )
        )
        for warning in found.warnings:
            rendering.note(f"warning: {warning}")
    if result.curves:
        print(f"{result.out}: use it with --draft {result.out}")
