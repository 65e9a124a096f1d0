"""`taslak advise`: which method to use for a model and one's own prompts, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    CrossVocab,
    Device,
    Draft,
    DraftDtype,
    Dtype,
    Exact,
    Threads,
    check_price,
    use_threads,
)

if TYPE_CHECKING:
    from taslak.control.advise import Advice


def advise(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, a Hub id, or a pack.")
    ] = DEFAULT_MODEL,
    draft: Draft = None,
    draft_dtype: DraftDtype = None,
    cross_vocab: CrossVocab = False,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = "cpu",
    exact: Exact = False,
    threads: Threads = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts to try: JSONL, or a text with one a line. Default: taslak's own tasks.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(metavar="X", help="Of the answers; 0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens of an answer.")] = 96,
    seconds: Annotated[
        float, typer.Option(metavar="N", help="Begin no further prompt after this; a few are always tried.")
    ] = 60.0,
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="X", help="Of the machine: says what a million tokens cost.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try every method there is on some prompts, and say which to use, how deep, and what to expect of it."""
    check_price(price_per_hour)
    use_threads(threads)
    with rendering.ProgressBar() as fetching:
        from taslak.bench.decoding import first_requests
        from taslak.bench.prompts import in_turns, read, suite
        from taslak.control.advise import advise as tried
        from taslak.control.calibrate import calibrated
        from taslak.loading import load, whatever_there_is

        method = whatever_there_is(model, draft, cross_vocab)
        language_model = load(
            model,
            draft=draft,
            method=method,
            dtype=dtype,
            draft_dtype=draft_dtype,
            cross_vocab=cross_vocab,
            exact=exact,
            device=device,
            progress=fetching,
        )
    asked = in_turns(suite() if prompts is None else read(prompts))
    requests = first_requests(language_model, asked, max_tokens=max_tokens, temperature=temperature)
    with rendering.WorkBar() as bar:
        found = tried(language_model, calibrated(language_model), requests, seconds=seconds, progress=bar)
    if as_json:
        print(json.dumps(found.as_json(price_per_hour), ensure_ascii=False))
    else:
        _print(found, price_per_hour)


def _print(found: Advice, per_hour: float | None) -> None:
    from taslak.control.summary import price
    from taslak.models.loading.storage import megabytes

    def costs(rate: float) -> list[str]:
        return [] if per_hour is None else [f"{price(rate, per_hour):.2f}"]

    rows = [
        [
            "plain",
            "1.00",
            "",
            f"{found.plain_tokens_per_second:.1f}",
            "",
            "",
            *costs(found.plain_tokens_per_second),
        ]
    ]
    rows += [
        [
            each.method,
            f"{each.speedup:.2f}",
            f"{each.low:.2f} – {each.high:.2f}",
            f"{each.tokens_per_second:.1f}",
            rendering.number(each.tau),
            f"+{megabytes(each.draft_bytes)}" if each.draft_bytes else "",
            *costs(each.tokens_per_second),
        ]
        for each in found.candidates
    ]
    columns = ["method", "speed-up", "95 %", "tokens/s", "τ", "memory"]
    columns += [] if per_hour is None else ["1M tokens"]
    rendering.table(columns, rows, right=range(1, len(columns)))
    best = found.best
    about = f"{found.prompts} prompts, {found.tokens} tokens each way"
    if best is None:
        print(f"don't speculate: nothing is faster beyond doubt ({about})")
        return
    fixed = f"; of fixed depths γ {best.gamma} fits best" if best.gamma else ""
    interval = f"{best.low:.2f} to {best.high:.2f}"
    print(f"use --method {best.method}: {best.speedup:.2f} times plain decoding, {interval} ({about}){fixed}")
