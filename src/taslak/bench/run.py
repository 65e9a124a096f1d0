"""All calls of a grid in turns: plain decoding and every way, in reverse order every other time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taslak.bench.decoding import Asked, Call, decode, difference
from taslak.bench.grid import PLAINLY, Grid, Setting, Way
from taslak.bench.log import Log, digest
from taslak.bench.methods import Models
from taslak.bench.prompts import BenchPrompt
from taslak.bench.results import Answered, Measurement, Spoken
from taslak.errors import OptionError
from taslak.models.loading import Progress

WARM_TOKENS = 8
"""Of the answer that each way gives once, untimed, before the first that counts."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Some prompts under one setting, and the ways that take turns at them."""

    series: int
    setting: Setting
    ways: tuple[Way, ...]
    prompts: tuple[BenchPrompt, ...]


def units(grid: Grid, prompts: Sequence[BenchPrompt], few: Sequence[BenchPrompt]) -> list[Unit]:
    """What a run consists of. few: those of the prompts that get the cells beside the base.

    Other batches than the base's get prompts that fill the widest of them, more than the few where they must;
    what would not fill a batch is left out. Raises OptionError where not a single one can be filled.
    """
    widest = max(grid.batches)
    if len(prompts) < widest:
        raise OptionError(
            f"a batch of {widest} needs as many prompts, and there are {len(prompts)}; name narrower ones "
            "with --batch, or more prompts with --each"
        )
    more = [*few, *(prompt for prompt in prompts if prompt not in few)][: max(len(few), widest)]
    found = []
    for series, cells in enumerate(grid.rounds()):
        given = prompts if cells.everywhere else few
        size = cells.setting.batch
        if not cells.everywhere and (size != grid.base.batch or len(few) < size):
            given = more[: len(more) // widest * widest]
        for start in range(0, len(given) - size + 1, size):
            found.append(Unit(series, cells.setting, cells.ways, tuple(given[start : start + size])))
    return found


def measure(
    models: Models,
    work: Sequence[Unit],
    log: Log,
    *,
    repeats: int,
    about: Any,
    progress: Progress | None = None,
) -> tuple[Measurement, ...]:
    """Run what the log doesn't hold yet. about: all that figures depend on besides; part of the log's keys.

    Raises OptionError for repeats below 1, and PromptError for a prompt that doesn't fit into the context.
    """
    if repeats < 1:
        raise OptionError(f"repeats is {repeats}; expected at least 1")
    _prepare(models, work, progress)
    run = _Run(models, log, about)
    found = []
    total = sum(repeats * len(unit.ways) for unit in work)
    for unit in work:
        for made in run.unit(unit, repeats):
            found.append(made)
            if progress is not None:
                progress("measuring", len(found), total)
    return tuple(found)


def _prepare(models: Models, work: Sequence[Unit], progress: Progress | None) -> None:
    """Touch every weight, and measure what steps cost where a way needs to know: neither is to be timed."""
    ways = list(dict.fromkeys(way for unit in work for way in unit.ways))
    for number, way in enumerate(ways):
        models.model(way).warm_up()
        if progress is not None:
            progress("getting ready", number + 1, len(ways))


class _Run:
    def __init__(self, models: Models, log: Log, about: Any) -> None:
        self._models = models
        self._log = log
        self._about = about
        self._warm: set[Way] = set()

    def unit(self, unit: Unit, repeats: int) -> Iterator[Measurement]:
        plain: Measurement | None = None
        asked: Asked | None = None
        for number in range(repeats):
            for way in unit.ways if number % 2 == 0 else unit.ways[::-1]:
                key = digest(self._about, unit.series, unit.setting, way, unit.prompts, number)
                made = self._log.measurement(key)
                if made is None:
                    if asked is None:
                        asked = Asked(self._models.model(PLAINLY), unit.prompts, unit.setting)
                    made = self._call(unit, asked, way, number, plain)
                    self._log.put(key, made)
                plain = made if plain is None else plain  # the first of all calls is a plain one
                yield made

    def _call(
        self, unit: Unit, asked: Asked, way: Way, number: int, plain: Measurement | None
    ) -> Measurement:
        model = self._models.model(way)
        speculate = way != PLAINLY
        if way not in self._warm:
            self._warm.add(way)
            short = Asked(model, unit.prompts[:1], replace(unit.setting, max_tokens=WARM_TOKENS, context=0))
            decode(model, short, 1, speculate=speculate)
        call = decode(model, asked, len(unit.prompts), speculate=speculate)
        sampled = self._models.verify == "rejection" and unit.setting.temperature > 0
        answers = []
        for index, prompt in enumerate(unit.prompts):
            answered = _answered(prompt, call, index)
            if not (sampled and speculate):
                same = plain is None or plain.answers[index].ids == answered.ids
                where = None
                if plain is not None and not same:
                    where = difference(model, asked, call, index, plain.answers[index].ids)
                answered = replace(answered, identical=same, difference=where)
            answers.append(answered)
        return Measurement(
            way,
            unit.setting,
            unit.series,
            number,
            call.seconds,
            call.first,
            call.parts.draft,
            call.parts.pass_,
            call.parts.other,
            call.counts,
            tuple(answers),
        )


def _answered(prompt: BenchPrompt, call: Call, index: int) -> Answered:
    said = call.said[index]
    return Answered(
        prompt.id,
        prompt.task,
        sum(turn.answer.prompt_tokens for turn in said),
        tuple(turn.answer.ids for turn in said),
        tuple(Spoken(t.answer.text, len(t.answer.ids), t.seconds, tuple(t.emitted)) for t in said),
    )
