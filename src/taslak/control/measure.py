"""Measures what steps cost here, and how often drafts are right: a few seconds of real decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic, perf_counter
from typing import Any

from torch import Tensor

from taslak.control import estimate
from taslak.control.costs import Costs, DraftCost, PassCost, RestCost, mode_of
from taslak.control.estimate import Prior, drawn, hot
from taslak.core.counts import Counts
from taslak.core.draft import Draft
from taslak.core.sampling import Sampling
from taslak.core.verify import VERIFIERS
from taslak.drafters.base import NOTHING, Budget, Drafter, View
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Request
from taslak.engine.sequence import Sequence as Answering
from taslak.engine.step import Engine
from taslak.engine.turn import Load, Plan, Step
from taslak.models.cache import Block
from taslak.models.target import Target, chain_rows

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33)
FAR = 1024
"""Positions of context that its share of a pass is measured at."""
DEPTH = 5
PATIENCE = 0.8
"""Seconds for each of the measurements; a slow model gets fewer repeats."""
TOKENS = 32
WIDE = 9
"""Rows that context is measured with, besides one."""
GAP = 16
ROWS_A_LEVEL = 8
"""Rows that a network beside the model takes in while it drafts a level, thereabouts."""
WARM = Sampling(temperature=estimate.WARM)
HOT = Sampling(temperature=estimate.HOT)
CUT = Sampling(temperature=estimate.WARM, top_p=0.95)
DRAWS = 24
"""Rows drawn from to know what one takes."""
CHUNKS = (65, 33, 17, 9)
"""Rows of a pass that takes in a prompt: the first that the model does in `SOON`."""
SOON = PATIENCE / 8

TEXTS = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n",
    "The harbour lay quiet in the early morning. Boats came back one after the other, and on the quay",
    "Question: A train leaves at nine and arrives at half past eleven. How long does it travel?\nAnswer:",
)
"""What is continued: a bit of code, of prose and of reasoning."""

ASKED = (
    f"Rename `total` to `amount` and show the whole function:\n\n{TEXTS[0]}    return total / len(values)\n",
    "Write a Python function that gives the median of a list.",
    "Describe a harbour in the early morning.",
    "A train leaves at nine and arrives at half past eleven. How long does it travel?",
)
"""What a model with a chat template is asked: heads trained on its answers guess raw text less well."""


@dataclass(slots=True)
class Calibration:
    """costs, and what a request starts from: by drafter where it is greedy, by `drawn` and `hot` else."""

    costs: Costs
    priors: dict[str, Prior] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"costs": self.costs.as_json(), "priors": {n: p.as_json() for n, p in self.priors.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Raises AttributeError, KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        priors = {name: Prior(**prior) for name, prior in values["priors"].items()}
        return cls(Costs.from_json(values["costs"]), priors)


def calibrate(model: LanguageModel, passing: PassCost | None = None) -> Calibration:
    """Measure. The model's own policy is not used. passing: of its passes, where that is known."""
    made = Calibration(Costs(passing or _passes(model.target)))
    rest, rules, row = made.costs.rest, dict.fromkeys(("coupled", model.verify)), _row(model)
    for sampling in (Sampling(), WARM):
        plain = _rest(model, {}, sampling)
        for rule in rules:
            rest[mode_of(sampling, rule)] = RestCost(plain, plain, _draw(model, row, sampling, rule))
    for name, drafter in model.engine.drafters.items():
        _drafter(model, made, name, drafter)
    for rule in rules:  # all but the draws is as without a cut
        warm, draw = rest[mode_of(WARM, rule)], _draw(model, row, CUT, rule)
        more = max(draw - warm.row, draw - warm.plain)
        rest[mode_of(CUT, rule)] = RestCost(warm.plain + more, warm.drafted + more, draw)
    return made


def _passes(target: Target) -> PassCost:
    """Rows next to no context, as a prompt's too; then two widths far in: how much context adds."""
    far = max(min(FAR, target.context - max(CHUNKS)), 0)
    cache = target.allocate(far + max(*ROWS, *CHUNKS))
    try:
        rows = [count for count in _widths(min(_timed(target, cache, (1,)))) if count <= target.context]
        near = _timed(target, cache, rows)
        wide, spared = _chunk(target, cache, PassCost(rows, _rising(near)))
        fill(cache, far)
        widths = [rows[0], rows[-1] if rows[-1] < WIDE else WIDE]
        deep = _timed(target, cache, widths) if far else near[:2]
    finally:
        cache.release()
    wider = {count: took for count, took in wide.items() if count > rows[-1]}
    seconds = _rising([*near, *wider.values()])
    one, many = (
        max(behind - seconds[rows.index(width)], 0.0) / max(far, 1)
        for behind, width in zip(deep, widths, strict=True)
    )
    attended = max(many - one, 0.0) / max(widths[1] - widths[0], 1)
    found = PassCost([*rows, *wider], seconds, max(one - attended, 0.0), attended, spared)
    found.beyond = found.slope
    return found


def _chunk(target: Target, cache: Block, passing: PassCost) -> tuple[dict[int, float], float]:
    """Seconds of a pass as wide as a model takes soon, by its rows, and how much less each of its rows takes
    that wants no logits. Nothing for a model that takes none so soon."""
    for rows in CHUNKS:
        if rows <= target.context and passing(rows) <= SOON:
            whole, last = _timed(target, cache, (rows, rows), wanted=(rows, 1), patience=SOON)
            return {rows: whole}, max(whole - last, 0.0) / (rows - 1)
    return {}, 0.0


def _widths(single: float) -> tuple[int, ...]:
    """Rows to measure, fewer of a slow model. single: seconds of a pass of one row."""
    if single < PATIENCE / 40:
        return ROWS
    return (1, 2, 3, 5, 9, 17) if single < PATIENCE / 6 else (1, 5, 9)


def _timed(
    target: Target,
    cache: Block,
    widths: Sequence[int],
    wanted: Sequence[int] | None = None,
    patience: float | None = None,
) -> list[float]:
    """Seconds of a pass of so many rows each: the lower quartile, for others only ever make it slower."""
    until = monotonic() + (PATIENCE if patience is None else patience)

    def enough(turns: int) -> bool:
        return turns >= 23 or (turns >= 1 and monotonic() >= until)

    took = timed(target, cache, widths, enough, wanted)
    return [sorted(seconds)[len(seconds) // 4] for seconds in took]


def timed(
    target: Target,
    cache: Block,
    widths: Sequence[int],
    enough: Callable[[int], bool],
    wanted: Sequence[int] | None = None,
) -> list[list[float]]:
    """[widths][turns] seconds of passes of so many rows. All in turns, back and forth, so that what else the
    machine does meets all of them; a first turn isn't counted.

    enough: of so many counted turns; wanted: [widths] rows that want logits, None = all
    """
    took: list[list[float]] = [[] for _ in widths]
    order = list(zip(widths, widths if wanted is None else wanted, took, strict=True))
    turns = -1
    while turns < 0 or not enough(turns):
        for rows, want, seconds in order if turns % 2 else order[::-1]:
            started = perf_counter()
            target.forward([chain_rows(cache, [0] * rows, want)]).logits.cpu()  # elsewhere it is waited for
            seconds.append(perf_counter() - started)
            cache.crop(cache.length)
        turns += 1
    return [seconds[1:] for seconds in took]


def fill(cache: Block, positions: int) -> None:
    """Have a cache hold so many positions, uncomputed: to the time of a pass it makes no difference what they
    are."""
    cache.add(range(-1, positions - 1))
    cache.keep(range(positions))


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
    """One step of decoding: its draft, rows visited, context, and the seconds of drafting, pass and rest."""

    draft: Draft
    visited: int
    context: int
    drafting: float
    passing: float
    rest: float


@dataclass(slots=True)
class _Watching:
    """A policy that has every step drafted alike and writes down what they took."""

    plan: Plan
    seen: list[_Seen] = field(default_factory=list)
    max_nodes: int = 64

    def plans(
        self, sequences: Sequence[Answering], _drafters: Mapping[str, Drafter], _load: Load
    ) -> list[Plan]:
        return [self.plan] * len(sequences)

    def record(self, step: Step) -> None:
        (turn,) = step.turns
        if turn.take == 1:
            drafting = sum(step.drafting.values())
            took = (drafting, step.passing, step.other)
            self.seen.append(_Seen(turn.draft, turn.visited, step.load.context, *took))

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
        for text in ASKED if model.tokenizer.has_chat_template else TEXTS:
            prompt = model.encode(text)
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


def _rest(model: LanguageModel, drafters: Mapping[str, Drafter], sampling: Sampling) -> float:
    """Of plain steps that these drafters hear of, what is no pass."""
    seen = _Answers(model, drafters, sampling).watch(dict.fromkeys(drafters, NOTHING), "coupled")
    return median(step.rest for step in seen) if seen else 0.0


def _row(model: LanguageModel) -> Tensor:
    """Float[V] logits behind the first words of a text."""
    prompt = model.tokenizer.encode(TEXTS[0])[: min(WIDE, model.target.context)]
    cache = model.target.allocate(len(prompt))
    try:
        return model.target.forward([chain_rows(cache, prompt, 1)]).logits.cpu()[0]
    finally:
        cache.release()


def _draw(model: LanguageModel, row: Tensor, sampling: Sampling, verify: str) -> float:
    """Seconds of each row that is visited: its distribution, the draw, and committing the token. Drafts are
    of the likeliest token, so that some are accepted. No pass is run: every row is the same. row: Float[V]"""
    seconds: list[float] = []
    draft = Draft.chain([int(row.argmax())] * DEPTH)
    cache = model.target.allocate(1)
    try:
        request = Request([0], sampling, max_tokens=None, seed=0, verify=verify)
        sequence = Answering(request, cache, model.tokenizer, DRAWS + DEPTH + 2)
        view = sequence.view
        while len(seconds) < DRAWS:
            started = perf_counter()
            for decision in VERIFIERS[verify](
                draft, lambda _: view.distribution(row), view.key, view.position
            ):
                sequence.commit(decision.token, accepted=decision.node is not None)
                seconds.append(perf_counter() - started)
                started = perf_counter()
    finally:
        cache.release()
    return median(seconds)


def _drafter(model: LanguageModel, made: Calibration, name: str, drafter: Drafter) -> None:
    """Drafts as deep as DEPTH and of one level: the difference is the levels'. What is right of the deep ones
    is what a request starts from."""
    took: dict[int, list[float]] = {}
    deep: list[_Seen] = []
    for sampling, name_of_prior in ((Sampling(), name), (WARM, drawn(name)), (HOT, hot(name))):
        known = made.costs.rest[mode_of(sampling, model.verify)]
        rests = []
        counts = Counts()
        drafts: list[Draft] = []
        for depth in (1, DEPTH) if sampling.greedy else (DEPTH,):
            answers = _Answers(model, {name: drafter}, sampling)
            nodes = depth * (model.branch if depth > 1 else 1)
            nodes = nodes if model.nodes is None else max(min(nodes, model.nodes), depth)
            seen = answers.watch({name: Budget(depth, nodes)}, model.verify)
            drafted = [step for step in seen if step.draft]
            for step in drafted:
                took.setdefault(step.draft.depth, []).append(step.drafting)
            rests += [step.rest - known.row * (step.visited - 1) for step in drafted]
            if depth == DEPTH:
                counts = answers.counts
                drafts = [step.draft for step in drafted]
                deep += drafted
        made.priors[name_of_prior] = _prior(counts, drafts)
        known.drafted = max([known.drafted, *([median(rests)] if rests else [])])
    hear = 0.0
    if drafter.needs.features:
        plain = made.costs.rest[mode_of(Sampling(), "coupled")].plain
        hear = max(_rest(model, {name: drafter}, Sampling()) - plain, 0.0)
    levels = _levels(took)
    made.costs.drafters[name] = replace(
        levels,
        lag=levels.level / ROWS_A_LEVEL if drafter.needs.features else _lag(model, drafter),
        hear=hear,
        left=_left(made.costs, drafter, deep),
    )


def _levels(took: Mapping[int, Sequence[float]]) -> DraftCost:
    """By depth the seconds drafts took: the shallowest against the deepest that there was."""
    if not took:
        return DraftCost(0.0, 0.0)
    low, high = min(took), max(took)
    flat, deep = median(took[low]), median(took[high])
    level = max(deep - flat, 0.0) / (high - low) if high > low else 0.0
    return DraftCost(max(flat - level * low, 0.0), level)


def _left(costs: Costs, drafter: Drafter, seen: Sequence[_Seen]) -> float:
    """Share of a pass that a draft leaves to do; 1 but for one made with the target's own layers."""
    if drafter.needs.exit_layer is None or not seen:
        return 1.0
    return min(median(step.passing / costs.pass_(1 + len(step.draft), step.context) for step in seen), 1.0)


def _lag(model: LanguageModel, drafter: Drafter) -> float:
    """Of each token that a drafter has to catch up on: what a draft takes longer after a gap of GAP tokens.
    Drafters that are fed by passes draft nothing here, and are never behind."""
    tokens = (model.tokenizer.encode("\n".join(TEXTS)) * GAP)[: 5 * GAP]
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
    expected = sum(sum(draft.confidence) for draft in drafts if draft.confidence is not None)
    trust = (counts.accepted + 1.0) / (expected + 1.0) if expected else 1.0
    return Prior(tuple(yields), tuple(reach), trust)
