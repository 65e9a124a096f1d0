"""Which method pays for a user's own prompts, and by how much: a short run of every one that there is.

Measured, not predicted: every prompt is answered plainly and with each method in turns, under the controller,
wall clock with prefill inside. Only the fixed depth named beside it is reckoned, from hazards and costs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from time import monotonic, perf_counter
from typing import Any

from taslak.control.controller import controller
from taslak.control.costs import mode_of
from taslak.control.estimate import DEEPEST
from taslak.control.measure import Calibration
from taslak.control.summary import price
from taslak.control.theory import best_gamma, predicted_speedup, reach
from taslak.core.counts import Counts
from taslak.drafters import base
from taslak.engine.language_model import LanguageModel
from taslak.engine.policy import FixedGamma, Policy
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import PLAIN, Request
from taslak.engine.step import Engine
from taslak.errors import OptionError
from taslak.models.loading import Progress

RESAMPLES = 1000
CONFIDENCE = 0.95
WARM_UP = 8
LEAST = 4
"""Prompts answered whatever the time: an interval needs a few."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one method came to.

    speedup:      tokens a second over plain decoding's; low, high: its 95 % interval over prompts
    gamma:        the best fixed depth of its drafter that computes (of the look-up, where there is none) by
                  hazards and costs, 0 = none pays
    draft_bytes:  weights it needs beside the target's
    """

    method: str
    speedup: float
    low: float
    high: float
    tokens_per_second: float
    tau: float | None
    acceptance_rate: float | None
    gamma: int
    draft_bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """candidates: the fastest first. prompts: how many were answered."""

    model: str
    prompts: int
    tokens: int
    plain_tokens_per_second: float
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The method to use; None = don't speculate: none is faster beyond doubt, as far as so many prompts
        can tell."""
        best = self.candidates[0]
        return best if self.prompts >= LEAST and best.low > 1.0 else None

    def as_json(self, per_hour: float | None = None) -> dict[str, Any]:
        """per_hour: price of the machine; adds what a million tokens cost."""
        found = {**asdict(self), "best": None if self.best is None else self.best.method}
        if per_hour is not None:
            found["plain_cost"] = price(self.plain_tokens_per_second, per_hour)
            for candidate in found["candidates"]:
                candidate["cost"] = price(candidate["tokens_per_second"], per_hour)
        return found


@dataclass(slots=True)
class _Way:
    """One way to answer, and what its answers took: [prompts] tokens, seconds."""

    engine: Engine
    drafters: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    by: dict[str, Counts] = field(default_factory=dict)


def advise(
    model: LanguageModel,
    calibration: Calibration,
    requests: Sequence[Request],
    *,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> Advice:
    """Answer the requests in turns: plainly, with each look-up of the model, and with each drafter that
    computes behind the first look-up.

    requests: one a prompt, in an order that any beginning of represents them all
    seconds:  after this no further prompt is begun, once a few are answered

    Raises OptionError without requests or for a model that has nothing to draft with.
    """
    if not requests:
        raise OptionError("there is no prompt to try; give at least one")
    ways = _ways(model, calibration)
    if len(ways) == 1:
        raise OptionError(f"{model.name} has nothing to draft with here; name a draft model or a head")
    for way in ways.values():  # weights are read for the first time
        _answer(model, way, replace(requests[0], max_tokens=WARM_UP), record=False)
    until = monotonic() + seconds
    for number, request in enumerate(requests):
        if number >= LEAST and monotonic() > until:
            break
        if progress is not None:
            progress("answering in every way", number, len(requests))
        order = list(ways.values())
        for way in order if number % 2 else order[::-1]:
            _answer(model, way, request)
    plain = ways.pop(PLAIN)
    found = [_candidate(model, calibration, name, way, plain, requests) for name, way in ways.items()]
    found.sort(key=lambda candidate: -candidate.speedup)
    return Advice(
        model.name, len(plain.tokens), sum(plain.tokens), sum(plain.tokens) / sum(plain.seconds), tuple(found)
    )


def _ways(model: LanguageModel, calibration: Calibration) -> dict[str, _Way]:
    drafters = model.engine.drafters
    lookups = [name for name in drafters if base.method(name).looks_up]
    sets: list[tuple[str, ...]] = [(name,) for name in lookups]
    sets += [(*lookups[:1], name) for name in drafters if name not in lookups]
    ways = {}
    for names in [(), *sets]:
        # each way learns of the machine for itself
        policy: Policy = controller(model, deepcopy(calibration)) if names else FixedGamma(1)
        engine = Engine(model.target, {name: drafters[name] for name in names}, policy)
        ways["+".join(names) or PLAIN] = _Way(engine, names)
    return ways


def _answer(model: LanguageModel, way: _Way, request: Request, record: bool = True) -> None:
    scheduler = Scheduler(way.engine, model.tokenizer)
    started = perf_counter()
    scheduler.add(request)
    answers = [event.answer for _, event in scheduler.run() if event.answer is not None]
    took = perf_counter() - started
    if record:
        (answer,) = answers
        way.tokens.append(len(answer.ids))
        way.seconds.append(took)
        for name, tally in answer.by.items():
            way.by.setdefault(name, Counts()).add(tally.counts)


def _candidate(
    model: LanguageModel,
    calibration: Calibration,
    name: str,
    way: _Way,
    plain: _Way,
    requests: Sequence[Request],
) -> Candidate:
    counts = Counts.total(way.by.values())
    low, high = _interval(way, plain)
    mode = mode_of(requests[0].sampling, requests[0].verify)
    return Candidate(
        method=name,
        speedup=_ratio(way, plain, range(len(plain.tokens))),
        low=low,
        high=high,
        tokens_per_second=sum(way.tokens) / sum(way.seconds),
        tau=counts.tau,
        acceptance_rate=counts.acceptance_rate,
        gamma=_depth(calibration, way, mode, _context(requests[: len(plain.tokens)], plain)),
        draft_bytes=sum(model.draft_bytes_of.get(each, 0) for each in way.drafters),
    )


def _depth(calibration: Calibration, way: _Way, mode: str, context: int) -> int:
    """The best fixed γ of the last drafter, by its hazards here and how often it had something to draft. No
    deeper than was seen."""
    costs, name = calibration.costs, way.drafters[-1]
    counts = way.by.get(name, Counts())
    # of one that computes, how deep the controller let it go is not how deep it would
    reached = reach(counts) if base.method(name).looks_up else []
    left = costs.left([name])
    speedups = [
        predicted_speedup(
            counts.hazards,
            gamma,
            passing=lambda rows: costs.pass_(rows, context) * (left if rows > 1 else 1.0),
            draft=lambda levels: costs.draft(name, levels),
            reach=reached,
            other=costs.rest_of(mode, True, visited=0.0),
            draw=costs.draw_of(mode),
        )
        for gamma in range(1, min(len(counts.hazards), DEEPEST) + 1)
    ]
    return best_gamma(speedups)


def _context(requests: Sequence[Request], plain: _Way) -> int:
    """Tokens that stood before one of the answers', on average."""
    prompts = sum(len(request.prompt) for request in requests)
    return round((prompts + sum(plain.tokens) / 2) / len(requests))


def _ratio(way: _Way, plain: _Way, prompts: Sequence[int]) -> float:
    """Tokens a second over plain's, over these prompts."""
    rate, base_rate = (
        sum(each.tokens[i] for i in prompts) / sum(each.seconds[i] for i in prompts) for each in (way, plain)
    )
    return rate / base_rate


def _interval(way: _Way, plain: _Way) -> tuple[float, float]:
    """Bootstrap over prompts (Efron 1979, percentiles): what other prompts of the kind would have given."""
    rng = random.Random(0)
    count = len(plain.tokens)
    ratios = sorted(_ratio(way, plain, rng.choices(range(count), k=count)) for _ in range(RESAMPLES))
    cut = int((1.0 - CONFIDENCE) / 2 * RESAMPLES)
    return ratios[cut], ratios[-1 - cut]
