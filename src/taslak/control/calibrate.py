"""Measures what steps cost on this machine and how often drafts are right, once, and remembers it.

Kept in the cache folder by model, width, kernels, threads and drafters; `Costs` corrects it as steps come.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch

from taslak import native
from taslak.control.costs import Costs, DraftCost, PassCost, RestCost, mode_of
from taslak.control.estimate import Prior
from taslak.core.counts import Counts
from taslak.core.draft import Draft
from taslak.core.sampling import Sampling
from taslak.drafters.base import Budget, Drafter, View
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Request
from taslak.engine.sequence import Sequence as Answering
from taslak.engine.step import Engine
from taslak.engine.turn import Plan, Step
from taslak.errors import UserError
from taslak.models.cache import Block
from taslak.models.loading import storage
from taslak.models.loading.storage import Progress
from taslak.models.target import Target, chain_rows

log = logging.getLogger(__name__)

VERSION = 1
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33)
FAR = 1024
"""Positions of context that its share of a pass is measured at."""
DEPTH = 5
PATIENCE = 1.2
"""Seconds for each of the measurements; a slow model gets fewer repeats."""
TOKENS = 32
WIDE = 9
"""Rows that context is measured with, besides one."""
GAP = 16
WARM = Sampling(temperature=0.8)

TEXTS = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n",
    "The harbour lay quiet in the early morning. Boats came back one after the other, and on the quay",
    "Question: A train leaves at nine and arrives at half past eleven. How long does it travel?\nAnswer:",
)
"""What is continued: a bit of code, of prose and of reasoning."""


@dataclass(slots=True)
class Calibration:
    """costs, and by drafter what a request starts from."""

    costs: Costs
    priors: dict[str, Prior] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        priors = {n: {"yields": [*p.yields], "reach": [*p.reach]} for n, p in self.priors.items()}
        return {"costs": self.costs.as_json(), "priors": priors}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Raises KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        priors = {name: Prior(**prior) for name, prior in values["priors"].items()}
        return cls(Costs.from_json(values["costs"]), priors)


def calibrated(model: LanguageModel, *, fresh: bool = False, progress: Progress | None = None) -> Calibration:
    """What is remembered of this model and these drafters on this machine, else measured now and remembered.

    fresh: measure anew. Takes a few seconds; what can't be stored is measured again next time.
    """
    home, key = _home(), _key(model)
    file = home / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"
    known = storage.read_json(file)
    if not fresh and isinstance(known, dict) and known.get("key") == key:
        try:
            return Calibration.from_json(known)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s is damaged and measured anew: %s", file, error)
    if progress is not None:
        progress(f"measuring what {model.name} costs here", 0, None)
    made = calibrate(model)
    try:
        storage.make_folder(home)
        storage.write_json(file, {"key": key, **made.as_json()})
    except (UserError, OSError) as error:
        log.warning("what was measured can't be kept: %s", error)
    return made


def remembered() -> list[tuple[dict[str, Any], Calibration]]:
    """Everything that was measured on this machine: what it depends on, and the figures."""
    found = []
    for file in sorted(_home().glob("*.json")):
        known = storage.read_json(file)
        try:
            found.append((dict(known["key"]), Calibration.from_json(known)))
        except (KeyError, TypeError, ValueError):
            continue  # `calibrated` says so when it is wanted
    return found


def _home() -> Path:
    return storage.cache_home() / "costs"


def _key(model: LanguageModel) -> dict[str, Any]:
    """Everything that the figures depend on."""
    weights = model.weights, model.draft_weights
    return {
        "version": VERSION,
        "model": model.name,
        "weights": [None if w is None else [w.dtype, w.path, w.bytes_per_token] for w in weights],
        "runs": native.describe(),
        "device": str(model.target.device),
        "processor": platform.processor() or platform.machine(),
        "threads": [native.threads() if native.available() else 0, torch.get_num_threads()],
        "method": model.method,
        "drafts with": [model.draft_name, model.draft_fingerprint],
        "shape": [model.branch, model.tree, model.nodes, model.exit_layer],
        "rejection": model.verify == "rejection",
    }


def calibrate(model: LanguageModel) -> Calibration:
    """Measure. The model's own policy is not used."""
    made = Calibration(Costs(_passes(model.target)))
    for sampling in (Sampling(), WARM):
        _plain(model, made.costs, sampling)
    for name, drafter in model.engine.drafters.items():
        _drafter(model, made, name, drafter)
    return made


def _passes(target: Target) -> PassCost:
    """Rows next to no context, then two widths far in: how much context adds."""
    most = max(ROWS)
    far = min(FAR, target.context - most - 1)
    cache = target.allocate(far + most)
    try:
        near = _timed(target, cache, ROWS)
        # what stands in the cache makes no difference to the time: positions are skipped, not computed
        cache.add(range(-1, far - 1))
        cache.keep(range(far))
        deep = _timed(target, cache, (1, WIDE))
    finally:
        cache.release()
    seconds = _rising(near)
    one, many = (
        max(deep_in - seconds[ROWS.index(rows)], 0.0) / far
        for deep_in, rows in zip(deep, (1, WIDE), strict=True)
    )
    attended = max(many - one, 0.0) / (WIDE - 1)
    return PassCost([*ROWS], seconds, max(one - attended, 0.0), attended)


def _timed(target: Target, cache: Block, widths: Sequence[int]) -> list[float]:
    """Seconds of a pass of so many rows each. All in turns, so that what else the machine does meets all of
    them, and the lower quartile: others only ever make it slower. The first turn isn't counted."""
    took: list[list[float]] = [[] for _ in widths]
    until = monotonic() + PATIENCE
    while len(took[0]) < 4 or (len(took[0]) < 24 and monotonic() < until):
        for rows, seconds in zip(widths, took, strict=True):
            started = perf_counter()
            target.forward([chain_rows(cache, [0] * rows, rows)])
            seconds.append(perf_counter() - started)
            cache.crop(cache.length)
    return [sorted(seconds[1:])[(len(seconds) - 1) // 4] for seconds in took]


def _rising(seconds: Sequence[float]) -> list[float]:
    """More rows are never cheaper; what says so is noise, and shared among neighbours (isotonic regression by
    pooling adjacent violators)."""
    blocks: list[list[float]] = []
    for each in seconds:
        blocks.append([each])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_mean(block) for block in blocks for _ in block]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One step of decoding: its draft, and the seconds of drafting and of the rest."""

    draft: Draft
    drafting: float
    rest: float


@dataclass(slots=True)
class _Watching:
    """A policy that has every step drafted alike and writes down what they took."""

    plan: Plan
    seen: list[_Seen] = field(default_factory=list)
    max_nodes: int = 64

    def plans(self, sequences: Sequence[Answering], _drafters: Mapping[str, Drafter]) -> list[Plan]:
        return [self.plan] * len(sequences)

    def record(self, step: Step) -> None:
        (turn,) = step.turns
        if turn.take == 1:
            self.seen.append(_Seen(turn.draft, sum(step.drafting.values()), step.other))

    def forget(self, sequence: Answering) -> None:
        """Nothing is kept of it."""


class _Answers:
    """Continues prompts in one way after the other, for as long as patience lasts."""

    def __init__(self, model: LanguageModel, drafters: Mapping[str, Drafter], sampling: Sampling) -> None:
        self._model = model
        self._drafters = drafters
        self._sampling = sampling
        self.counts = Counts()

    def watch(self, plan: Plan, verify: str) -> list[_Seen]:
        """The steps of all prompts."""
        model, until = self._model, monotonic() + PATIENCE
        watching = _Watching(plan)
        engine = Engine(model.target, self._drafters, watching)
        for text in TEXTS:
            prompt = model.tokenizer.encode(text)
            request = Request(prompt, self._sampling, max_tokens=TOKENS, seed=0, verify=verify)
            cache = model.target.allocate(len(prompt) + TOKENS + watching.max_nodes)
            sequence = Answering(request, cache, model.tokenizer, model.target.context)
            try:
                while sequence.finish is None and (not watching.seen or monotonic() < until):
                    engine.step([sequence])
            finally:
                engine.forget(sequence)
            self.counts.add(sequence.counts)
        return watching.seen


def _plain(model: LanguageModel, costs: Costs, sampling: Sampling) -> None:
    """The rest of plain steps, every drafter listening; what a draft adds comes with each drafter."""
    seen = _Answers(model, model.engine.drafters, sampling).watch({}, "coupled")
    rest = median(step.rest for step in seen) if seen else 0.0
    costs.rest[mode_of(sampling, "coupled")] = RestCost(rest, rest)


def _drafter(model: LanguageModel, made: Calibration, name: str, drafter: Drafter) -> None:
    """Drafts as deep as DEPTH and of one level: the difference is the levels'. What is right of the deep ones
    is what a request starts from."""
    settings = [Sampling()] if model.verify == "coupled" else [Sampling(), WARM]
    took: dict[int, list[float]] = {1: [], DEPTH: []}
    counts = Counts()
    deep: list[Draft] = []
    for sampling in settings:
        rests = []
        for depth in took:
            answers = _Answers(model, {name: drafter}, sampling)
            width = model.branch if depth > 1 else 1
            seen = answers.watch({name: Budget(depth, depth * width)}, model.verify)
            took[depth] += [step.drafting for step in seen if step.draft.depth == depth]
            rests += [step.rest for step in seen if step.draft]
            if depth == DEPTH:
                counts.add(answers.counts)
                deep += [step.draft for step in seen if step.draft]
        mode = mode_of(sampling, model.verify)
        known = made.costs.rest.setdefault(mode, replace(made.costs.rest[mode_of(sampling, "coupled")]))
        known.drafted = max([known.drafted, *([median(rests)] if rests else [])])
    flat, high = (median(took[depth]) if took[depth] else 0.0 for depth in (1, DEPTH))
    level = max(high - flat, 0.0) / (DEPTH - 1)
    exit_layer = drafter.needs.exit_layer
    made.costs.drafters[name] = DraftCost(
        fixed=max(flat - level, 0.0),
        level=level,
        lag=_lag(model, drafter),
        left=1.0 if exit_layer is None else 1.0 - exit_layer / model.target.layers,
    )
    made.priors[name] = _prior(counts, deep)


def _lag(model: LanguageModel, drafter: Drafter) -> float:
    """Of each token that a drafter has to catch up on: what a draft takes longer after a gap of GAP tokens.
    Drafters that are fed by passes draft nothing here, and are never behind."""
    tokens = (model.tokenizer.encode("\n".join(TEXTS)) * GAP)[: 3 * GAP]
    took = []
    for behind in (1, GAP + 1):
        view = View(tokens[:GAP], GAP, Sampling(), key=0)
        seconds: list[float] = []
        try:
            while len(view.tokens) + behind <= len(tokens) and len(seconds) < 3:
                drafter.propose([view], [Budget(1, 1)])
                view.tokens += tokens[len(view.tokens) :][:behind]
                started = perf_counter()
                drafter.propose([view], [Budget(1, 1)])
                seconds.append(perf_counter() - started)
        finally:
            drafter.forget(view)
        took.append(min(seconds))
    return max(took[1] - took[0], 0.0) / GAP


def _prior(counts: Counts, drafts: Sequence[Draft]) -> Prior:
    """One right draft more and one wrong than were seen: a few dozen prove neither always nor never."""
    if not drafts:
        return Prior()
    accepted = [*counts.accepted_at[:DEPTH], *[0] * (DEPTH - len(counts.accepted_at))]
    ahead = [len(drafts), *accepted[:-1]]
    yields = [(got + 1.0) / (asked + 2.0) for got, asked in zip(accepted, ahead, strict=True)]
    reach = [sum(draft.depth > d for draft in drafts) / len(drafts) for d in range(DEPTH)]
    return Prior(tuple(yields), tuple(reach))
