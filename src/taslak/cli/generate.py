"""`taslak generate`: one prompt, with speculation, without, or both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    DRAFTING,
    Branch,
    CrossVocab,
    Device,
    Draft,
    DraftDtype,
    Dtype,
    Exact,
    ExitLayer,
    Gamma,
    Lookup,
    Method,
    Model,
    Nodes,
    StopBelow,
    Threads,
    Tree,
    Verify,
    use_threads,
)
from taslak.errors import OptionError, PromptError, SamplingError

if TYPE_CHECKING:
    from taslak.control.history import History
    from taslak.engine import Answer, LanguageModel

SAMPLING, OUTPUT = "Sampling", "Output"

EXCLUDING = [
    ("--plain", "--compare"),
    ("--plain", "--draft"),
    ("--plain", "--method"),
    ("--plain", "--draft-dtype"),
    ("--plain", "--exit-layer"),
    ("--show", "--compare"),
    ("--show", "--json"),
    ("--json-schema", "--regex"),
    ("--json-schema", "--grammar"),
    ("--regex", "--grammar"),
]
"""Of these pairs one would silently do nothing."""


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT|-", help="The prompt; - reads it from standard input.")
    ],
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = "cpu",
    exact: Exact = False,
    threads: Threads = None,
    raw: Annotated[bool, typer.Option("--raw", help="Don't put the prompt into the chat template.")] = False,
    method: Method = None,
    draft: Draft = None,
    draft_dtype: DraftDtype = None,
    cross_vocab: CrossVocab = False,
    gamma: Gamma = None,
    branch: Branch = None,
    tree: Tree = None,
    nodes: Nodes = None,
    exit_layer: ExitLayer = None,
    stop_below: StopBelow = None,
    lookup: Lookup = None,
    verify: Verify = "coupled",
    plain: Annotated[
        bool, typer.Option("--plain", help="Decode without speculation.", rich_help_panel=DRAFTING)
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Decode both ways; say whether the texts are identical, and the speed ratio.",
            rich_help_panel=DRAFTING,
        ),
    ] = False,
    temperature: Annotated[
        float, typer.Option(metavar="X", help="Divides the logits; 0 is greedy.", rich_help_panel=SAMPLING)
    ] = 0.0,
    top_k: Annotated[
        int,
        typer.Option(metavar="N", help="Keep the k likeliest tokens; 0 is off.", rich_help_panel=SAMPLING),
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Keep the smallest set of likeliest tokens with this probability; 1 is off.",
            rich_help_panel=SAMPLING,
        ),
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Keep tokens with this share of the likeliest one's probability; 0 is off.",
            rich_help_panel=SAMPLING,
        ),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Makes a sampled answer repeatable; without it one is drawn and shown.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of the answer.", rich_help_panel=SAMPLING)
    ] = 256,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End the answer before this text; may be given several times.",
            metavar="TEXT",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(
            help="A JSON schema that the answer keeps to, {} for any JSON object; - reads it from standard "
            "input.",
            metavar="FILE|-",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            help="A regular expression that the whole answer matches.",
            metavar="TEXT",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option(
            help="A grammar that the answer keeps to, in llguidance's form of Lark; - reads it from standard "
            "input.",
            metavar="FILE|-",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="LABEL", help="A label for the statistics.", rich_help_panel=OUTPUT)
    ] = "",
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record",
            help="Keep the figures (never the text) for `taslak stats`.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
    show: Annotated[
        bool,
        typer.Option("--show", help="Colour accepted draft tokens and bonus tokens.", rich_help_panel=OUTPUT),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Say what it took: peak memory, weights read per token, size of the K/V cache.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Answer a prompt. The text goes to standard output as it is decided, figures to standard error."""
    given = {
        "--plain": plain,
        "--compare": compare,
        "--draft": draft is not None,
        "--method": method is not None,
        "--draft-dtype": draft_dtype is not None,
        "--exit-layer": exit_layer is not None,
        "--show": show,
        "--json": as_json,
        "--json-schema": json_schema is not None,
        "--regex": regex is not None,
        "--grammar": grammar is not None,
    }
    for first, second in EXCLUDING:
        if given[first] and given[second]:
            raise OptionError(f"{first} and {second} exclude each other; give one of them")
    if draft_dtype is not None and draft is None:
        raise OptionError("--draft-dtype needs --draft, the model it is for")
    if prompt == "-" and "-" in (json_schema, grammar):
        raise OptionError("PROMPT and a grammar are both -, standard input, which holds one; name a file")
    text = _read(prompt)
    constraint = {
        "json_schema": None if json_schema is None else _read_file(json_schema, "--json-schema"),
        "regex": regex,
        "grammar": None if grammar is None else _read_file(grammar, "--grammar"),
    }
    use_threads(threads)
    with rendering.ProgressBar() as progress:
        import taslak
        from taslak.control.history import History

        history = History() if record else None
        language_model = taslak.load(
            model,
            draft=draft,
            method=method,
            gamma=gamma,
            verify=verify,
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
            history=history,
            progress=progress,
        )
    if history is not None:
        _record(language_model, history)
    rendering.note_slow_path(language_model.weights)
    request: dict[str, Any] = {
        "max_tokens": max_tokens,
        "stop": tuple(stop or ()),
        "seed": seed,
        "raw": raw,
        "task": task,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        **constraint,
    }
    try:
        if compare:
            _compare(language_model, text, request, as_json=as_json)
        else:
            _answer(language_model, text, request, speculate=not plain, show=show, as_json=as_json)
    finally:
        if history is not None:
            history.close()
    if stats:
        rendering.note(rendering.statistics(language_model.statistics()))


def _record(model: LanguageModel, history: History) -> None:
    from taslak.control.recorder import Recorder

    model.listeners.append(Recorder(model, [history.add]))


def _read(prompt: str) -> str:
    """The prompt itself, or standard input for `-`; the newline that ends its last line is not part of it."""
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not text in {error.encoding}: {error.reason}") from error


def _read_file(name: str, option: str) -> str:
    """The text of a file, or standard input for `-`."""
    if name == "-":
        return _read(name)
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"{option} {name} can't be read: {why}") from error


def _answer(
    model: LanguageModel, prompt: str, request: dict[str, Any], *, speculate: bool, show: bool, as_json: bool
) -> None:
    """One way: the text as it is decided, or one JSON object; then what was used and the figures."""
    from taslak.engine import answer_json

    if as_json:
        answer = model.generate(prompt, speculate=speculate, **request)
        used = answer_json(
            answer,
            method=model.method if speculate else "plain",
            gamma=model.gamma if speculate else 0,
            verify=model.verify,
            dtype=model.dtype,
        )
        print(json.dumps(used, ensure_ascii=False))
    else:
        answer = _stream(model, prompt, show=show, speculate=speculate, **request)
    rendering.note(rendering.settings(model, answer, speculate=speculate))
    rendering.note(rendering.figures(answer))
    if answer.error is not None:
        raise SamplingError(answer.error)


def _stream(model: LanguageModel, prompt: str, *, show: bool, **request: Any) -> Answer:
    """Writes the text as it is decided and returns the finished answer."""
    writer = rendering.ColouredText() if show else rendering.PlainText()
    for event in model.stream(prompt, **request):
        for piece, accepted in event.pieces:
            writer.write(piece, accepted)
    writer.close()
    assert event.answer is not None
    return event.answer


def _compare(model: LanguageModel, prompt: str, request: dict[str, Any], *, as_json: bool) -> None:
    """Both ways: the speculative text, or one JSON object; then both figures and the verdict."""
    comparison = model.compare(prompt, **request)
    if as_json:
        print(json.dumps(comparison.as_json(), ensure_ascii=False))
    else:
        if not comparison.identical:
            rendering.heading("plain")
            print(comparison.plain.text)
            rendering.heading("speculative")
        print(comparison.speculative.text)
    rendering.note(rendering.settings(model, comparison.speculative))
    rendering.comparison(comparison)
    if comparison.error is not None:
        raise SamplingError(comparison.error)
