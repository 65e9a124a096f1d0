"""Proof on the user's own model, drafter and prompts that speculation changes nothing.

Identity where the same text is promised, a chi-squared test where the same distribution is, and the edges at
which answers end. It looks at answers alone, never into drafter or verifier: what is wrong in either shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from taslak.control.goodness import POWER, goodness_of_fit
from taslak.core.sampling import Sampling, distribution
from taslak.engine.compare import Difference, first_difference
from taslak.engine.scheduler import Scheduler
from taslak.engine.sequence import Answer, Request
from taslak.engine.step import CHUNK, Engine, take_in
from taslak.engine.text import Decodes
from taslak.errors import OptionError
from taslak.models.loading import Notice
from taslak.models.target import PREFIX, Rows, Target, chain_rows

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

SAMPLED = Sampling(temperature=1.0, top_k=4, top_p=0.95)
"""Of the distribution test: few tokens a place, so that their joint distribution has few cells; two cuts."""
DEPTH = 3
"""Tokens whose joint distribution is tested …"""
BEYOND = 4
"""… and more that every second sample decodes behind them. Its drafts are as deep as elsewhere; those of the
others end one token before the last, so that the token a pass adds by itself is tested too."""
CONTEXT = 24
"""Tokens of a prompt that are in front of them, twice over: then a look-up has something to find."""
SIGNIFICANCE = 1e-4
"""Chance that a test of a right verifier fails, for all prompts together."""
MOST_TESTED = 20
"""Prompts of the distribution test: the p-value of one is known to 1e-6."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first place where something is wrong. prompt: its number, from 0; difference: None where the texts
    differ otherwise than in a token; what: in words."""

    prompt: int
    what: str
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """outcome: "passed", "failed", or "skipped" where the drafter drafted nothing, so nothing was tested
    detail:  what was compared, in a line
    drafted, accepted: over all its answers
    """

    name: str
    outcome: str
    detail: str
    drafted: int
    accepted: int
    found: Found | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and something was tested."""
        outcomes = {check.outcome for check in self.checks}
        return FAILED not in outcomes and PASSED in outcomes

    def as_json(self) -> dict[str, Any]:
        """Margins of a token that could not come are None."""
        checks = [asdict(check) for check in self.checks]
        for made, check in zip(checks, self.checks, strict=True):
            if check.found is not None and (difference := check.found.difference) is not None:
                made["found"]["difference"] |= {
                    "margins": [m if math.isfinite(m) else None for m in difference.margins],
                    "near_tie": difference.near_tie,
                }
        return {"passed": self.passed, "checks": checks}


CHECKS = ("greedy", "greedy, rejection", "sampled", "batch", "stop", "end of text", "budget", "distribution")
"""Their names, in the order they are run."""


def audit(
    engine: Engine,
    tokenizer: Decodes,
    prompts: Sequence[Sequence[int]],
    *,
    eos: Sequence[int] = (),
    max_tokens: int = 64,
    seeds: int = 2,
    samples: int = 400,
    only: Collection[str] = CHECKS,
    progress: Notice | None = None,
) -> Report:
    """Run every check, or `only` some.

    engine:      target, drafter and policy, as they would answer
    prompts:     token ids
    eos:         ids that end an answer
    max_tokens:  of each answer compared
    seeds:       sampled answers a prompt
    samples:     a prompt of the distribution test

    Raises OptionError for settings out of range, PromptError for a prompt that can't be answered.
    """
    check_settings(max_tokens, seeds, samples, only)
    if not prompts:
        raise OptionError("there is no prompt to check; give at least one")
    run = _Audit(engine, tokenizer, prompts, tuple(eos), max_tokens, seeds, samples)
    checks = []
    for name in CHECKS:
        if name in only:
            if progress is not None:
                progress(name)
            checks.append(run.check(name))
    return Report(tuple(checks))


def check_settings(max_tokens: int, seeds: int, samples: int, only: Collection[str]) -> None:
    """Raise OptionError for a setting of `audit` out of range."""
    for name, value, least in (("max_tokens", max_tokens, 8), ("seeds", seeds, 1), ("samples", samples, 1)):
        if value < least:
            raise OptionError(f"{name} is {value}; expected at least {least}")
    if unknown := [name for name in only if name not in CHECKS]:
        raise OptionError(f"there is no check {unknown[0]!r}; expected {', '.join(CHECKS)}")


class _Audit:
    def __init__(
        self,
        engine: Engine,
        tokenizer: Decodes,
        prompts: Sequence[Sequence[int]],
        eos: tuple[int, ...],
        max_tokens: int,
        seeds: int,
        samples: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._eos = eos
        self._max_tokens = max_tokens
        self._samples = samples
        warm = Sampling(temperature=0.8)
        self._greedy = [self._request(prompt, Sampling()) for prompt in prompts]
        self._warm = [self._request(prompt, warm, seed) for prompt in prompts for seed in range(seeds)]
        side_by_side = seeds if len(prompts) > 1 else max(seeds, 2)
        self._batch = [self._request(p, warm, seed) for p in prompts for seed in range(side_by_side)]

    def check(self, name: str) -> Check:
        if name == "distribution":
            return self._distribution(name)
        detail, batches = self._compared_batches(name)
        return self._identity(name, detail, batches)

    def _compared_batches(self, name: str) -> tuple[str, list[list[Request]]]:
        """What is decoded with speculation, a batch at a time, and each of it without and alone."""
        greedy, warm = self._greedy, self._warm
        if name == "greedy":
            return "greedy answers, coupled verification", [[request] for request in greedy]
        if name == "greedy, rejection":
            rejecting = [[replace(request, verify="rejection")] for request in greedy]
            return "greedy answers, rejection verification", rejecting
        if name == "sampled":
            return "answers at temperature 0.8, one seed for both", [[request] for request in warm]
        if name == "batch":
            return "such answers drafted side by side in one batch", [self._batch]
        if name == "budget":
            most = min(self._engine.policy.max_nodes + 3, 8)
            short = [[replace(r, max_tokens=count)] for r in greedy for count in range(1, most + 1)]
            return f"answers of 1 to {most} tokens", short
        plain = [self._answers([replace(request, speculate=False)])[0] for request in greedy]
        if name == "stop":
            return "answers that end at a text", _stops(greedy, plain)
        return "answers that end at a token", _ends(greedy, plain)

    def _request(self, prompt: Sequence[int], sampling: Sampling, seed: int = 0) -> Request:
        request = Request(prompt, sampling, self._max_tokens, eos=self._eos, seed=seed)
        request.check(self._engine.target.vocab_size, self._engine.target.context)
        return request

    def _answers(self, requests: Sequence[Request]) -> list[Answer]:
        """All of them in one batch, in the order of the requests."""
        scheduler = Scheduler(self._engine, self._tokenizer)
        numbers = [scheduler.add(request) for request in requests]
        answers = {number: event.answer for number, event in scheduler.run() if event.answer is not None}
        return [answers[number] for number in numbers]

    def _identity(self, name: str, detail: str, batches: Sequence[Sequence[Request]]) -> Check:
        """Each batch with speculation, each of its requests without and alone: the same answers."""
        drafted = accepted = ties = count = tested = 0
        for batch in batches:
            for request, answer in zip(batch, self._answers(batch), strict=True):
                count += 1
                drafted += answer.counts.drafted
                accepted += answer.counts.accepted
                plain = self._answers([replace(request, speculate=False)])[0]
                found = self._compared(request, plain, answer)
                if found is None:
                    tested += answer.counts.drafted
                    continue
                tie = found.difference is not None and found.difference.near_tie
                if not tie or self._engine.target.width_invariant:
                    return Check(name, FAILED, detail, drafted, accepted, found)
                ties += 1
        told = f"{count} {detail}" + (f", {ties} part at a near-tie, as this path may" if ties else "")
        return Check(name, PASSED if tested else SKIPPED, told, drafted, accepted)

    def _compared(self, request: Request, plain: Answer, answer: Answer) -> Found | None:
        number = next(i for i, prompt in enumerate(self._prompts) if prompt is request.prompt)
        if plain.ids != answer.ids:
            difference = first_difference(self._engine.target, request, plain, answer)
            assert difference is not None
            ids = f"{difference.speculative} with speculation and {difference.plain} without"
            return Found(number, f"token {difference.position} is {ids}", difference)
        for what in ("text", "finish_reason", "error"):
            with_, without = getattr(answer, what), getattr(plain, what)
            if with_ != without:
                return Found(number, f"{what} is {with_!r} with speculation and {without!r} without")
        return None

    def _distribution(self, name: str) -> Check:
        """The next DEPTH tokens under rejection verification against their exact joint distribution."""
        samples, target = self._samples, self._engine.target
        prompts = self._prompts[:MOST_TESTED]
        significance = SIGNIFICANCE / len(prompts)
        detail = f"{samples} samples a prompt of the next {DEPTH} tokens, rejection verification"
        drafted = accepted = 0
        least, noticed = 1.0, 0.0
        for number, prompt in enumerate(prompts):
            context = [*prompt[-CONTEXT:]] * 2
            sampling = _few_tokens(target, context)
            request = Request(context, sampling, verify="rejection")
            answers = self._answers(
                [replace(request, seed=i, max_tokens=DEPTH + i % 2 * BEYOND) for i in range(samples)]
            )
            accepted += sum(answer.counts.accepted for answer in answers)
            if error := next((answer.error for answer in answers if answer.error), None):
                return Check(name, FAILED, detail, drafted, accepted, Found(number, error))
            counts = Counter(answer.ids[:DEPTH] for answer in answers)
            law = joint_law(target, context, sampling, DEPTH)
            fit = goodness_of_fit(counts, law, significance)
            if fit.p_value < significance:
                strange = next((path for path in counts if path not in law), None)
                what = (
                    f"chi-squared p = {fit.p_value:.1e} over {fit.cells} cells"
                    if strange is None
                    else f"tokens {list(strange)} came, which the model can't give"
                )
                figures = {"p_value": fit.p_value}
                return Check(name, FAILED, detail, drafted, accepted, Found(number, what), figures)
            if fit.noticed is not None:  # else nothing could have been seen here
                drafted += sum(answer.counts.drafted for answer in answers)
                least, noticed = min(least, fit.p_value), max(noticed, fit.noticed)
        if not drafted:
            told = f"{detail}: no fault could have shown; give more samples, or prompts that are drafted for"
            return Check(name, SKIPPED, told, drafted, accepted)
        told = f"{detail}: least p {least:.2g}; {noticed:.1%} of them moved would show with chance {POWER:g}"
        return Check(name, PASSED, told, drafted, accepted, None, {"p_value": least, "noticed": noticed})


def _few_tokens(target: Target, context: Sequence[int]) -> Sampling:
    """Settings that leave few tokens a place. Where rounding may differ between passes, a cut may too, so
    there the tokens are the same ones at every place."""
    if target.width_invariant:
        return SAMPLED
    likeliest = joint_law(target, context, Sampling(temperature=1.0, top_k=4), 1)
    return Sampling(temperature=1.0, logit_bias={path[0]: 100.0 for path in likeliest})


def joint_law(
    target: Target, prompt: Sequence[int], sampling: Sampling, depth: int
) -> dict[tuple[int, ...], float]:
    """The probability of every possible sequence of the next `depth` tokens, from the target's logits over
    their tree. For settings that leave few tokens a place."""
    cache = target.allocate(len(prompt) + CHUNK)
    try:
        take_in(target, cache, prompt[:-1])
        logits = target.forward([chain_rows(cache, prompt[-1:], 1)]).logits
        cache.keep([0])
        level: list[tuple[tuple[int, ...], float, int]] = [((), 1.0, PREFIX)]
        while True:
            following = []
            for (branch, mass, node), row in zip(level, logits.cpu(), strict=True):
                p = distribution(row, prompt, branch, len(prompt), sampling)
                for token, share in zip(p.ids.tolist(), p.softmax().tolist(), strict=True):
                    following.append(((*branch, token), mass * share, node))
            if len(following[0][0]) == depth:
                return {branch: mass for branch, mass, _ in following}
            first = cache.nodes
            rows = Rows(
                cache,
                [branch[-1] for branch, _, _ in following],
                [node for _, _, node in following],
                first=first,
                wanted=len(following),
            )
            logits = target.forward([rows]).logits
            level = [(branch, mass, first + i) for i, (branch, mass, _) in enumerate(following)]
    finally:
        cache.release()


def _stops(requests: Sequence[Request], plain: Sequence[Answer]) -> list[list[Request]]:
    """Each with a stop string from the middle of its own answer."""
    middles = [
        (request, len(answer.text) // 2, answer.text) for request, answer in zip(requests, plain, strict=True)
    ]
    return [
        [replace(request, stop=(text[at : at + 3],))] for request, at, text in middles if text[at : at + 3]
    ]


def _ends(requests: Sequence[Request], plain: Sequence[Answer]) -> list[list[Request]]:
    """Each with a token from the middle of its own answer as end of text."""
    return [
        [replace(request, eos=(*request.eos, answer.ids[len(answer.ids) // 2]))]
        for request, answer in zip(requests, plain, strict=True)
        if answer.ids
    ]
