"""`taslak verify`: proof that speculation changes nothing, for a model, a drafter and prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    Branch,
    CrossVocab,
    Device,
    Draft,
    DraftDtype,
    Dtype,
    Exact,
    ExitLayer,
    FixedGamma,
    FixedStopBelow,
    Lookup,
    Method,
    Nodes,
    Threads,
    Tree,
    use_threads,
)

if TYPE_CHECKING:
    from taslak.control.audit import Check

PROMPTS = (
    "Write a Python function that checks whether a word is a palindrome.",
    "Return this list sorted by price, one item a line: pear 3, apple 2, plum 5, fig 4, quince 1.",
    "Tell me a short story about a lighthouse keeper and a gull.",
)


def verify(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder in Hugging Face layout, a .gguf file, a Hub id, or a pack."
        ),
    ] = DEFAULT_MODEL,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = "cpu",
    exact: Exact = False,
    threads: Threads = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own prompts: JSONL of prompt or messages, or lines of text. Default: three of ours.",
        ),
    ] = None,
    method: Method = None,
    draft: Draft = None,
    draft_dtype: DraftDtype = None,
    cross_vocab: CrossVocab = False,
    gamma: FixedGamma = None,
    branch: Branch = None,
    tree: Tree = None,
    nodes: Nodes = None,
    exit_layer: ExitLayer = None,
    stop_below: FixedStopBelow = None,
    lookup: Lookup = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Of each answer that is compared.")] = 64,
    seeds: Annotated[int, typer.Option(metavar="N", help="Sampled answers a prompt.")] = 2,
    samples: Annotated[
        int,
        typer.Option(metavar="N", help="A prompt, of the distribution test; more show smaller faults."),
    ] = 400,
    check: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only this check; may be given several times. Default: all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that speculation changes nothing: identical texts, the same distribution, the same ends.

    Exit code 1 where a check fails, or nothing could be checked because nothing was drafted.
    """
    use_threads(threads)
    with rendering.ProgressBar() as progress:
        import taslak
        from taslak.control.audit import CHECKS, audit, check_settings
        from taslak.engine.prompts import Prompt, read_prompts

        check_settings(max_tokens, seeds, samples, check or CHECKS)
        asked = [Prompt(text, "") for text in PROMPTS] if prompts is None else read_prompts(prompts)
        language_model = taslak.load(
            model,
            draft=draft,
            method=method,
            gamma=gamma,
            control=False,  # what is checked has to be drafted, whether it pays or not
            dtype=dtype,
            draft_dtype=draft_dtype,
            cross_vocab=cross_vocab,
            exact=exact,
            branch=branch,
            tree=tree,
            nodes=nodes,
            exit_layer=exit_layer,
            stop_below=stop_below,
            lookup=lookup,
            device=device,
            progress=progress,
        )
    report = audit(
        language_model.engine,
        language_model.tokenizer,
        [language_model.encode(prompt.text, prompt.raw) for prompt in asked],
        eos=[token for token in language_model.tokenizer.eos_ids if token < language_model.target.vocab_size],
        max_tokens=max_tokens,
        seeds=seeds,
        samples=samples,
        only=check or CHECKS,
        progress=lambda what: rendering.note(f"({what} …)"),
    )
    if as_json:
        used = {"model": language_model.name, "method": language_model.method, "dtype": language_model.dtype}
        print(json.dumps({**used, **report.as_json()}, ensure_ascii=False, allow_nan=False))
    else:
        for made in report.checks:
            print(f"{made.outcome:<8} {made.name}: {_told(made)}")
        about = f"{language_model.name}, method {language_model.method}, {language_model.dtype}"
        print(f"{about}: {'speculation changed nothing' if report.passed else 'NOT proven'}")
    if not report.passed:
        raise typer.Exit(1)


def _told(check: Check) -> str:
    """A line: what was compared, or the first thing that is wrong."""
    found = check.found
    if found is None:
        drafted = f"{check.accepted} of {check.drafted} drafted tokens accepted"
        return f"{check.detail}; {drafted if check.drafted else 'nothing drafted'}"
    told = f"prompt {found.prompt + 1}: {found.what}"
    if found.difference is not None:
        alone, together = found.difference.margins
        told += f"; plain's leads by {alone:.3g} decoded alone and {together:.3g} among other rows"
    return told
