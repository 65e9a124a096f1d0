"""Plain against speculative: the same prompt, the same seed, both clocks running."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from taslak.core.noise import Stream, fresh_seed, gumbel, noise_key
from taslak.core.sampling import distribution
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import take_in
from taslak.errors import OptionError
from taslak.models.target import Target, chain_rows

if TYPE_CHECKING:
    from taslak.engine.language_model import LanguageModel

NEAR_TIE = 1e-3
"""In float32, scores closer than this may swap places when sums are rounded in another order."""

_WIDE = 8
"""Rows of the pass that stands for a verifying one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two answers part.

    position:   token of the answer, from 0
    plain, speculative: the two token ids, None where that answer had already ended
    margins:    score of the plain token over that of the speculative one, decoded alone and among 8 rows; a
                score is the logit, over the temperature and with the draw's noise where one is drawn.
                Infinite where a setting cuts off one of the two
    tolerance:  how much rounding may move a score: one step of the dtype at the largest logit, 1e-3 at least
    """

    position: int
    plain: int | None
    speculative: int | None
    margins: tuple[float, float]
    tolerance: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it: the two are nearly equal, or the width of the pass alone turns them
        round. Otherwise something is wrong."""
        alone, together = self.margins
        return min(abs(alone), abs(together)) < self.tolerance or (alone > 0) != (together > 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt. `gamma`: None = chosen as it goes. `speedup`: tokens a second,
    speculative over plain; None if one failed."""

    plain: Answer
    speculative: Answer
    difference: Difference | None
    method: str
    gamma: int | None
    verify: str
    dtype: str

    @property
    def identical(self) -> bool:
        return self.plain.ids == self.speculative.ids and self.plain.text == self.speculative.text

    @property
    def speedup(self) -> float | None:
        if self.error is not None or not self.plain.ids:
            return None
        return self.speculative.tokens_per_second / self.plain.tokens_per_second

    @property
    def error(self) -> str | None:
        """Why one of the answers failed, if one did."""
        return self.plain.error or self.speculative.error

    def as_json(self) -> dict[str, Any]:
        """The keys of `taslak generate --compare --json`."""
        difference = self.difference
        return {
            "identical": self.identical,
            "speedup": self.speedup,
            "plain": answer_json(self.plain, method="plain", gamma=0, verify=self.verify, dtype=self.dtype),
            "speculative": answer_json(
                self.speculative, method=self.method, gamma=self.gamma, verify=self.verify, dtype=self.dtype
            ),
            "first_difference": None
            if difference is None
            else {
                "position": difference.position,
                "plain": difference.plain,
                "speculative": difference.speculative,
                "margins": [m if math.isfinite(m) else None for m in difference.margins],
                "near_tie": difference.near_tie,
            },
        }


def answer_json(answer: Answer, *, method: str, gamma: int | None, verify: str, dtype: str) -> dict[str, Any]:
    """One answer as the command line's JSON. Rates are null where nothing was drafted, gamma where it was
    chosen as it goes."""
    counts, seconds = answer.counts, answer.seconds
    return {
        "text": answer.text,
        "ids": list(answer.ids),
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        "tokens": len(answer.ids),
        "prompt_tokens": answer.prompt_tokens,
        "tokens_per_second": answer.tokens_per_second,
        "passes": counts.passes,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_rate": counts.acceptance_rate,
        "node_rate": counts.node_rate,
        "alpha": counts.alpha,
        "tau": counts.tau,
        "theoretical_speedup": counts.theoretical_speedup,
        "estimated_speedup": answer.speedup,
        "hazards": counts.hazards,
        "by": {
            name: {
                "passes": tally.counts.passes,
                "drafted": tally.counts.drafted,
                "accepted": tally.counts.accepted,
                "acceptance_rate": tally.counts.acceptance_rate,
                "estimated_speedup": tally.speedup,
            }
            for name, tally in answer.by.items()
        },
        "dropped_drafts": answer.dropped,
        "seconds": {"draft": seconds.draft, "pass": seconds.pass_, "other": seconds.other},
        "method": method,
        "gamma": gamma,
        "verify": verify,
        "dtype": dtype,
        "seed": answer.seed,
    }


def compare(model: LanguageModel, prompt: Any, *, raw: bool = False, **options: Any) -> Comparison:
    """See LanguageModel.compare. Warms both sides up first, so that neither pays for reading the weights."""
    if "speculate" in options or options.get("n", 1) != 1:
        raise OptionError("compare decodes one answer both ways; leave out n and speculate")
    if options.get("seed") is None:
        options["seed"] = fresh_seed()
    model.warm_up()
    plain = model.generate(prompt, raw=raw, speculate=False, **options)
    speculative = model.generate(prompt, raw=raw, speculate=True, **options)
    request = model.requests(prompt, raw=raw, **options)[0]
    difference = None
    if model.verify == "coupled" or request.sampling.greedy:  # only sampled rejection may give another text
        difference = first_difference(model.target, request, plain, speculative)
    return Comparison(plain, speculative, difference, model.method, model.gamma, model.verify, model.dtype)


def first_difference(
    target: Target, request: Request, plain: Answer, speculative: Answer
) -> Difference | None:
    """Where two answers to one request part, and by how little. None where they don't."""
    if plain.ids == speculative.ids:
        return None
    short = min(len(plain.ids), len(speculative.ids))
    at = next((i for i in range(short) if plain.ids[i] != speculative.ids[i]), short)
    context = [*request.prompt, *plain.ids[:at]]
    ids = _at(plain, at), _at(speculative, at)
    alone, tolerance = _margin(target, request, plain.seed, context, 1, ids)
    together, _ = _margin(target, request, plain.seed, context, _WIDE, ids)
    return Difference(at, ids[0], ids[1], (alone, together), tolerance)


def _at(answer: Answer, position: int) -> int | None:
    return answer.ids[position] if position < len(answer.ids) else None


def _margin(
    target: Target,
    request: Request,
    seed: int,
    context: Sequence[int],
    width: int,
    ids: tuple[int | None, int | None],
) -> tuple[float, float]:
    """Score of the first id over the second after `context`, its last `width` tokens run in one pass, and the
    tolerance. An ended answer has no score: its margin is that of the other token, infinite."""
    cache = target.allocate(len(context))
    try:
        head = max(0, len(context) - width)
        take_in(target, cache, context[:head])
        logits = target.forward([chain_rows(cache, context[head:], 1)]).logits[0].cpu()
    finally:
        cache.release()
    sampling = request.sampling
    temperature = 1.0 if sampling.greedy else sampling.temperature
    p = distribution(logits, context, (), len(request.prompt), replace(sampling, temperature=temperature))
    scores = p.z
    if not sampling.greedy:
        scores = scores + gumbel(noise_key(seed, request.choice), Stream.TOKEN, len(context), p.ids)
    first, second = (
        float(scores[p.ids == i]) if i is not None and bool((p.ids == i).any()) else -math.inf for i in ids
    )
    largest = float(logits[logits > -math.inf].abs().max())
    tolerance = max(NEAR_TIE, torch.finfo(target.dtype).eps * largest) / temperature
    return (0.0 if first == second else first - second), tolerance
