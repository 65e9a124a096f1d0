"""Plain against speculative: the same prompt, the same seed, both clocks running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from taslak.core.noise import Stream, fresh_seed, gumbel, noise_key
from taslak.core.sampling import distribution
from taslak.engine.sequence import Answer, Request
from taslak.errors import OptionError
from taslak.models.decoder import chain_rows
from taslak.models.target import Target

if TYPE_CHECKING:
    from taslak.engine.language_model import LanguageModel

NEAR_TIE = 1e-3
"""Two best scores closer than this may swap places when sums are rounded in another order."""

_WIDE = 8
"""Rows of the pass that stands for a verifying one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two answers part.

    position:  token of the answer, from 0
    plain, speculative: the two token ids, None where that answer had already ended
    margins:   score of the best token over the second best, decoded alone and among 8 rows; a score is the
               logit over the temperature, plus the draw's noise
    """

    position: int
    plain: int | None
    speculative: int | None
    margins: tuple[float, float]

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it; otherwise something is wrong."""
        return min(self.margins) < NEAR_TIE


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt. `speedup`: tokens a second, speculative over plain."""

    plain: Answer
    speculative: Answer
    difference: Difference | None
    method: str
    gamma: int
    verify: str
    dtype: str

    @property
    def identical(self) -> bool:
        return self.plain.ids == self.speculative.ids and self.plain.text == self.speculative.text

    @property
    def speedup(self) -> float:
        return self.speculative.tokens_per_second / self.plain.tokens_per_second

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
                "margins": list(difference.margins),
                "near_tie": difference.near_tie,
            },
        }


def answer_json(answer: Answer, *, method: str, gamma: int, verify: str, dtype: str) -> dict[str, Any]:
    """One answer as the command line's JSON. Rates are null where nothing was drafted."""
    counts, seconds = answer.counts, answer.seconds
    return {
        "text": answer.text,
        "ids": list(answer.ids),
        "finish_reason": answer.finish_reason,
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
        "hazards": counts.hazards,
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
    if model.verify == "coupled":
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
    return Difference(
        position=at,
        plain=plain.ids[at] if at < len(plain.ids) else None,
        speculative=speculative.ids[at] if at < len(speculative.ids) else None,
        margins=(
            _margin(target, request, plain.seed, context, 1),
            _margin(target, request, plain.seed, context, _WIDE),
        ),
    )


def _margin(target: Target, request: Request, seed: int, context: list[int], width: int) -> float:
    """Best score over second best after `context`, its last `width` tokens run in one pass."""
    cache = target.allocate(len(context))
    try:
        head = len(context) - min(width, len(context))
        for token in context[:head]:
            target.forward([chain_rows(cache, [token], 0)])
            cache.keep([0])
        logits = target.forward([chain_rows(cache, context[head:], 1)]).logits[0]
    finally:
        cache.release()
    p = distribution(logits, context, (), len(request.prompt), request.sampling)
    if request.sampling.greedy:
        scores = logits.double()
    else:
        key = noise_key(seed, request.choice)
        scores = p.z + gumbel(key, Stream.TOKEN, len(context), p.ids)
    if scores.numel() < 2:
        return float("inf")
    best, second = torch.topk(scores, 2).values.tolist()
    return float(best - second)
