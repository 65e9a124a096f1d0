"""Why drafts are accepted or not: how far drafter and target agree on the next token.

At every place of the target's own answer (teacher-forced: no draft is ever kept) the drafter drafts one
token, and the distribution q it was drawn from is set against the target's p. Under rejection verification
the chance that a drafted token is accepted is exactly 1 − TV(p, q) (Leviathan et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from taslak.bench.decoding import Asked
from taslak.bench.grid import PLAINLY, Setting
from taslak.bench.log import Log, digest
from taslak.bench.methods import Models, plain_engine
from taslak.bench.prompts import BenchPrompt
from taslak.bench.results import Agreement
from taslak.core.draft import ONE_HOT, Draft
from taslak.core.sampling import distribution
from taslak.drafters import base
from taslak.drafters.aside import Aside
from taslak.drafters.base import Drafter, View
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Request
from taslak.engine.step import take_in
from taslak.models.loading import Progress
from taslak.models.target import Target, chain_rows

FLOOR = 1e-3
"""Of an even distribution, mixed into q for KL: finite where the drafter can't say a token at all."""

UNTRAINED = ", untrained"
"""Behind the name of a head with random weights."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of one next token; see `Agreement`."""

    overlap: float
    top1: float
    kl: float | None
    outside: float | None


def agreements(
    models: Models,
    methods: Sequence[str],
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float],
    log: Log,
    *,
    max_tokens: int = 48,
    about: Any = None,
    progress: Progress | None = None,
) -> tuple[Agreement, ...]:
    """Of every drafter of these methods that has a q of its own (look-ups have none), and of its head before
    it was trained, by task and temperature."""
    found = []
    drafters = list(_drafters(models, methods))
    tasks = dict.fromkeys(prompt.task for prompt in prompts)
    total, done = len(drafters) * len(temperatures) * len(prompts), 0
    for name, drafter in drafters:
        for temperature in temperatures:
            by_task: dict[str, list[Place]] = {task: [] for task in tasks}
            for prompt in prompts:
                key = digest("why", about, name, temperature, prompt, max_tokens)
                kept = log.get(key)
                if kept is None:
                    setting = Setting(temperature, 0, max_tokens)
                    kept = [asdict(each) for each in _places(models, drafter, prompt, setting)]
                    log.put(key, kept)
                by_task[prompt.task] += [Place(**place) for place in kept]
                done += 1
                if progress is not None:
                    progress("comparing p and q", done, total)
            found += [_mean(name, task, temperature, places) for task, places in by_task.items() if places]
    return tuple(found)


def agree(p: Tensor, q: Tensor) -> Place:
    """Of two distributions over one vocabulary, Float64[V] each, summing to one."""
    even = (1.0 - FLOOR) * q + FLOOR / q.numel()
    return Place(
        overlap=float(torch.minimum(p, q).sum()),  # 1 − TV = Σ min(p, q)
        top1=float(int(p.argmax()) == int(q.argmax())),
        kl=float(torch.special.xlogy(p, p / even).sum()),
        outside=float(p[q == 0].sum()),
    )


def _drafters(models: Models, methods: Sequence[str]) -> Iterator[tuple[str, Drafter]]:
    seen: set[str] = set()
    for method in methods:
        for untrained in (False, True):
            for name, drafter in models.drafters(method, untrained=untrained).items():
                label = (method if ":" in method else name) + (UNTRAINED if untrained else "")
                if not base.method(name).looks_up and label not in seen:
                    seen.add(label)
                    yield label, drafter


def _places(models: Models, drafter: Drafter, prompt: BenchPrompt, setting: Setting) -> list[Place]:
    """Of the first answer to one prompt."""
    model = models.model(PLAINLY)
    asked = Asked(model, [prompt], setting)
    ((_, plain),) = asked.requests(model, [[]], True)
    # under this rule a drafter hands over the q it draws from; with nothing drafted the text is p's own
    request = Request(
        plain.prompt, plain.sampling, plain.max_tokens, eos=plain.eos, seed=plain.seed, verify="rejection"
    )
    asking = Asking(drafter)
    scheduler = Scheduler(plain_engine(model, asking), model.tokenizer)
    scheduler.add(request)
    answers = [event.answer for _, event in scheduler.run() if event.answer is not None]
    ids = answers[0].ids
    start, tokens = len(request.prompt), [*request.prompt, *ids]
    logits = _logits(model.target, tokens[:-1], len(ids))
    found = []
    for place, row in enumerate(logits):
        draft = asking.drafts.get(start + place)
        if not draft:
            continue
        p = distribution(row, tokens[: start + place], (), start, request.sampling)
        if request.sampling.greedy:
            same = float(int(p.ids[0]) == draft.tokens[0])
            found.append(Place(same, same, None, None))
        else:
            size = model.target.vocab_size
            found.append(agree(p.probabilities(size).cpu(), _q(draft, size)))
    return found


def _logits(target: Target, tokens: Sequence[int], count: int) -> Tensor:
    """Float[count, V] after the last `count` of the tokens."""
    cache = target.allocate(len(tokens))
    try:
        take_in(target, cache, tokens[:-count])
        return target.forward([chain_rows(cache, tokens[-count:], count)]).logits.clone()
    finally:
        cache.release()


def _q(draft: Draft, vocab_size: int) -> Tensor:
    """Float64[V] that the first token was drawn from; one-hot where it was chosen."""
    row = draft.q_row[0] if draft.q_row else ONE_HOT
    if row != ONE_HOT and draft.q is not None:
        return draft.q[row].double().cpu()
    q = torch.zeros(vocab_size, dtype=torch.float64)
    q[draft.tokens[0]] = 1.0
    return q


def _mean(drafter: str, task: str, temperature: float, places: Sequence[Place]) -> Agreement:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    kl = [place.kl for place in places if place.kl is not None]
    outside = [place.outside for place in places if place.outside is not None]
    return Agreement(
        drafter,
        task,
        temperature,
        len(places),
        mean([place.overlap for place in places]),
        mean([place.top1 for place in places]),
        mean(kl) if kl else None,
        mean(outside) if outside else None,
    )


class Asking(Aside):
    """One token in every step. drafts: by the position of the token drafted."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter, depth=1)
        self.drafts: dict[int, Draft] = {}

    def made(self, view: View, draft: Draft) -> None:
        self.drafts[len(view.tokens)] = draft
