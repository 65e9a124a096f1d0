"""`taslak bench`: ways of drafting beside plain decoding, over tasks, depths, temperatures and lengths."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    CrossVocab,
    Device,
    DraftDtype,
    Dtype,
    Exact,
    Model,
    Threads,
    use_threads,
)
from taslak.errors import OptionError

if TYPE_CHECKING:
    from taslak.bench.figures import Figures
    from taslak.bench.methods import Models
    from taslak.bench.pipeline import Plan
    from taslak.bench.results import Results

WAYS, ASKED, OUTPUT = "What is compared", "What is asked", "Results"
SHOWN = ("method", "speed-up", "slower", "tokens/s", "τ", "acceptance rate", "identical")
"""Of the overview, what a terminal has room for; the files have all of it."""

Value = TypeVar("Value")


def bench(
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = "cpu",
    exact: Exact = False,
    threads: Threads = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A smaller model with the same tokenizer, or the folder of a head; may be given several "
            "times. Heads that come with taslak for the model are compared anyway.",
            rich_help_panel=WAYS,
        ),
    ] = None,
    draft_dtype: DraftDtype = None,
    cross_vocab: CrossVocab = False,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Ways of drafting; auto is what a user gets who names none. Default: all there are.",
            rich_help_panel=WAYS,
        ),
    ] = None,
    gamma: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Drafted depths, 1 to 16; auto is chosen as answers go. Default: auto,1,2,4,8.",
            rich_help_panel=WAYS,
        ),
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(metavar="X,X,...", help="Default: 0,0.8.", rich_help_panel=WAYS)
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Tokens that prompts are padded to; 0 is as they are. Default: 0,512,1024.",
            rich_help_panel=WAYS,
        ),
    ] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Most tokens of an answer. Default: 96,16,256.", rich_help_panel=WAYS
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Prompts answered together. Default: 1,4,8.", rich_help_panel=WAYS
        ),
    ] = None,
    verify: Annotated[
        str,
        typer.Option(
            help="coupled: the same text as without speculation. rejection: the same distribution.",
            metavar="coupled|rejection",
            rich_help_panel=WAYS,
        ),
    ] = "coupled",
    cross: Annotated[
        bool,
        typer.Option(
            "--cross",
            help="Every combination of these values, over every prompt; otherwise the first of each list is "
            "the base and the others are varied one at a time, over fewer prompts.",
            rich_help_panel=WAYS,
        ),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own: Spec-Bench's question.jsonl, JSONL of prompt or messages with a task, or lines "
            "of text. Default: the tasks that come with taslak.",
            rich_help_panel=ASKED,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this task; may be given several times.", rich_help_panel=ASKED
        ),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(metavar="N", help="Prompts of each task; 0 is all. Default: 4.", rich_help_panel=ASKED),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(metavar="N", help="How often each is run. Default: 3.", rich_help_panel=ASKED),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Few values, prompts and repeats: minutes rather than hours.",
            rich_help_panel=ASKED,
        ),
    ] = False,
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            help="Also compare what drafters and model think of the next token, untrained heads beside.",
            rich_help_panel=ASKED,
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where results and report go.", rich_help_panel=OUTPUT)
    ] = Path("taslak-bench"),
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Forget what an earlier run has left in DIR; otherwise it is gone on with.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Draw the HTML report.", rich_help_panel=OUTPUT)
    ] = True,
    png: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write each plot as a PNG here.", rich_help_panel=OUTPUT),
    ] = None,
    spec_bench: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the first method's answers in Spec-Bench's format, and plain decoding's beside "
            "them in FILE with -plain in its name.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Compare ways of drafting with plain decoding: speed, acceptance, identical texts. Writes a report.

    Everything is run in turns and kept as it comes: a run that was stopped goes on with the same command.
    """
    if png is not None and not report:
        raise OptionError("--png needs the plots that --no-report leaves out; give one of them")
    use_threads(threads)
    with rendering.ProgressBar() as progress:
        from taslak.bench import drawing, pipeline
        from taslak.bench import methods as ways
        from taslak.bench import prompts as asked

        if report:
            drawing.require_plotting()
        chosen = asked.suite() if prompts is None else asked.read(prompts)
        plan = pipeline.QUICK if quick else pipeline.FULL
        given: dict[str, Any] = {
            "gammas": _list("--gamma", gamma, _gamma),
            "temperatures": _list("--temperature", temperature, float),
            "contexts": _list("--context", context, int),
            "max_tokens": _list("--max-tokens", max_tokens, int),
            "batches": _list("--batch", batch, int),
            "each": each,
            "repeats": repeats,
            "methods": _list("--methods", methods, str),
        }
        plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
        plan = replace(plan, cross=cross, why=plan.why or why, tasks=tuple(task or ()))
        if batch is None:
            plan = pipeline.fitted(plan, chosen)
        if spec_bench is not None and (plan.batches[0] != 1 or not spec_bench.absolute().parent.is_dir()):
            raise OptionError(
                f"--spec-bench {spec_bench} needs a folder that is there, and --batch to begin with 1: its "
                "answers are of one prompt at a time"
            )
        pipeline.check(plan, chosen)
        models = ways.load(
            model,
            draft or (),
            verify=verify,
            dtype=dtype,
            draft_dtype=draft_dtype,
            cross_vocab=cross_vocab,
            exact=exact,
            device=device,
            progress=progress,
        )
    results = _run(models, plan, chosen, out, fresh=fresh)
    files = [out / pipeline.RESULTS]
    from taslak.bench.figures import Figures

    found = Figures(results)
    files += _written(results, found, out, report=report, png=png, spec_bench=spec_bench)
    _show(found, as_json=as_json)
    rendering.note("wrote " + ", ".join(map(str, files)))


def _run(models: Models, plan: Plan, prompts: Sequence[Any], out: Path, *, fresh: bool) -> Results:
    from taslak.bench import pipeline

    with rendering.WorkBar() as bar:
        return pipeline.run(models, plan, prompts, out, fresh=fresh, progress=bar)


def _written(
    results: Results, found: Figures, out: Path, *, report: bool, png: Path | None, spec_bench: Path | None
) -> list[Path]:
    """Everything but the results themselves."""
    from taslak.bench import pipeline, specbench, table
    from taslak.bench.grid import PLAINLY

    files = [out / pipeline.TABLES]
    files[0].write_text(table.markdown(table.every(found)), encoding="utf-8")
    if report:
        from taslak.bench import report as page

        made = page.write(results, out / pipeline.REPORT, png)
        files += made[:1] if png is None else [made[0], png]
    if spec_bench is not None:
        beside = spec_bench.with_name(f"{spec_bench.stem}-plain{spec_bench.suffix}")
        for path, way in ((spec_bench, found.main[0].way), (beside, PLAINLY)):
            specbench.write(results, path, way)
            files.append(path)
    return files


def _show(found: Figures, *, as_json: bool) -> None:
    """On standard output: the tables, or one JSON object of them."""
    from taslak.bench import table

    tables = table.every(found)
    if as_json:
        made = {one.title: [dict(zip(one.columns, row, strict=True)) for row in one.rows] for one in tables}
        print(json.dumps({"about": found.results.about, "tables": made}, ensure_ascii=False))
        return
    narrow = table.overview(found).only(*SHOWN)
    for one in (narrow, table.tasks(found), table.identical(found), table.losses(found)):
        if one.rows:
            rendering.heading(one.title)
            rendering.table(one.columns, one.rows, right=range(1, len(one.columns)))


def _list(name: str, text: str | None, kind: Callable[[str], Value]) -> tuple[Value, ...] | None:
    """Values between commas. Raises OptionError for one that isn't of its kind."""
    if text is None:
        return None
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{name} is {text!r}; expected numbers with commas between them") from None


def _gamma(text: str) -> int | None:
    return None if text == "auto" else int(text)
