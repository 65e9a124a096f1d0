"""A whole benchmark in order: choose prompts, run the grid, time passes, compare p and q, keep it all."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from taslak import native
from taslak.bench import run as runs
from taslak.bench.grid import PLAIN, Grid
from taslak.bench.log import Log, digest
from taslak.bench.methods import Models, check_names
from taslak.bench.passes import pass_times
from taslak.bench.prompts import BenchPrompt, chosen
from taslak.bench.results import Agreement, Measurement, PassTimes, Results
from taslak.bench.run import units
from taslak.bench.why import agreements
from taslak.engine.usage import processor
from taslak.errors import DiskError
from taslak.loading import AUTO, LOOKUP
from taslak.models.loading import Progress

LOG, RESULTS, TABLES, REPORT = "runs.jsonl", "results.json", "tables.md", "report.html"
"""Files of a run, in its folder."""

_PASSES = "passes"
_EXAMPLE = ("any",)
"""In place of methods while it isn't known which there are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for; see `Grid` for the lists.

    methods:  empty = all there are (a few of them in a quick run)
    tasks:    empty = all
    each:     prompts of a task that the base is run over; 0 = all
    few:      prompts of a task that everything else is run over
    few_tasks: of so many tasks, evenly spread; 0 = all
    why:      compare p and q as well, over the few prompts
    """

    methods: tuple[str, ...] = ()
    gammas: tuple[int | None, ...] = (None, 1, 2, 4, 8)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    contexts: tuple[int, ...] = (0, 512, 1024)
    max_tokens: tuple[int, ...] = (96, 16, 256)
    batches: tuple[int, ...] = (1, 4, 8)
    cross: bool = False
    tasks: tuple[str, ...] = ()
    each: int = 4
    few: int = 1
    few_tasks: int = 0
    repeats: int = 3
    why: bool = False
    quick: bool = False

    def grid(self, methods: Sequence[str]) -> Grid:
        """Raises OptionError for values out of range."""
        return Grid(
            tuple(methods),
            self.gammas,
            self.temperatures,
            self.contexts,
            self.max_tokens,
            self.batches,
            self.cross,
        )

    def prompts(self, given: Sequence[BenchPrompt]) -> tuple[list[BenchPrompt], list[BenchPrompt]]:
        """Those that the base is run over, and the few of them for everything else. Raises OptionError."""
        every = chosen(given, self.tasks, self.each)
        few = chosen(every, (), self.few)
        if 0 < self.few_tasks < len(few):
            few = [few[i * len(few) // self.few_tasks] for i in range(self.few_tasks)]
        return every, few


FULL = Plan()

QUICK = Plan(
    gammas=(None, 2, 4),
    contexts=(0, 512),
    max_tokens=(48, 16),
    batches=(1, 4),
    each=1,
    few_tasks=3,
    repeats=1,
    why=True,
    quick=True,
)
"""Under three minutes for the default model on two cores."""


def fitted(plan: Plan, given: Sequence[BenchPrompt]) -> Plan:
    """Without the batches that there are too few prompts for: for a plan whose batches nobody asked for."""
    count = len(plan.prompts(given)[0])
    return replace(plan, batches=tuple(size for size in plan.batches if size <= count) or (1,))


def check(plan: Plan, given: Sequence[BenchPrompt]) -> None:
    """Raise OptionError for what can't be run, before any model is loaded."""
    units(plan.grid(plan.methods or _EXAMPLE), *plan.prompts(given))
    check_names(plan.methods)


def run(
    models: Models,
    plan: Plan,
    given: Sequence[BenchPrompt],
    folder: Path,
    *,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Run what the folder doesn't hold yet, and write results.json there.

    Raises OptionError for what can't be run, PromptError for a prompt that doesn't fit into the context, and
    DiskError where nothing can be written.
    """
    methods = plan.methods or (_few_methods(models) if plan.quick else tuple(models.available))
    every, few = plan.prompts(given)
    work = units(plan.grid(methods), every, few)
    models.check(methods)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = Log(folder / LOG, fresh=fresh)
    except OSError as error:
        raise DiskError(f"{folder} can't be written to: {error.strerror}; name another with --out") from error
    depends = _depends(models)
    measured = runs.measure(models, work, log, repeats=plan.repeats, about=depends, progress=progress)
    agreed: tuple[Agreement, ...] = ()
    if plan.why:
        agreed = agreements(models, methods, few, plan.temperatures, log, about=depends, progress=progress)
    results = Results(
        about=_about(models, plan, methods, len(every), len(few), depends),
        measurements=measured,
        passes=_passes(models, log, depends, measured),
        agreements=agreed,
        draft_bytes={method: models.draft_bytes(method) for method in methods},
    )
    results.write(folder / RESULTS)
    return results


def _few_methods(models: Models) -> tuple[str, ...]:
    """What a user gets, the look-up, and the first of all that is there besides."""
    others = [method for method in models.available if method not in (AUTO, LOOKUP, "ngram")]
    return (AUTO, LOOKUP, *others[:1])


def _passes(models: Models, log: Log, depends: Any, measured: Sequence[Measurement]) -> PassTimes:
    """Behind as much context as the answers had at their middle, by and large."""
    middles = [
        answer.prompt_tokens // max(len(answer.turns), 1) + answer.tokens // 2
        for made in measured
        if made.series == 0 and made.way.method == PLAIN
        for answer in made.answers
    ]
    context = int(median(middles))
    key = digest(_PASSES, depends, context)
    kept = log.get(key)
    if kept is None:
        log.put(key, pass_times(models.target.decoder, context))
        kept = log.get(key)
    return PassTimes(kept["context"], tuple(kept["rows"]), tuple(kept["seconds"]))


def _depends(models: Models) -> dict[str, Any]:
    """What figures depend on besides ways, settings and prompts: nothing is gone on with where it differs."""
    return {
        "model": models.target.name,
        "dtype": models.target.dtype,
        "computed by": models.target.path,
        "verification": models.verify,
        "draft models": [f"{name} {draft.dtype} {draft.path}" for name, draft in models.drafts.items()],
        "exact": models.exact,
        "device": str(models.target.decoder.device),
        "processor": processor(),
        "heads": [f"{kind} {head.fingerprint}" for kind, head in models.heads.items()],
        "threads": native.threads() if native.available() else torch.get_num_threads(),
        "versions": {name: version(name) for name in ("taslak", "torch")},
    }


def _about(
    models: Models, plan: Plan, methods: Sequence[str], prompts: int, few: int, depends: dict[str, Any]
) -> dict[str, Any]:
    base = replace(plan, methods=tuple(methods)).grid(methods).base
    return {
        **depends,
        "weights": f"{models.target.decoder.weight_bytes / 1e6:.0f} MB",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "methods": list(methods),
        "base": f"temperature {base.temperature:g}, {base.max_tokens} tokens, batch {base.batch}"
        + (f", prompts padded to {base.context}" if base.context else ""),
        "prompts": f"{prompts} for the base, {few} for everything else",
        "repeats": plan.repeats,
    }
