"""The sampling pipeline once more, in plain Python floats: slow, obvious, and sharing no code with `core`.

Tests feed it logits, penalties and biases on a grid of quarters, where float32 and float64 agree exactly,
so that ties are ties on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from taslak.core.sampling import Sampling

Law = dict[tuple[int, ...], float]
"""Token sequence -> probability."""

NextToken = Callable[[tuple[int, ...]], Mapping[int, float]]
"""Tokens so far -> probability of each possible next one."""


def adjusted(
    logits: Sequence[float], context: Sequence[int], prompt_length: int, s: Sampling
) -> dict[int, float]:
    """Token -> logit after everything that comes before the temperature; banned tokens are left out."""
    answer = list(context[prompt_length:])
    if len(answer) < len(s.forced):
        return {s.forced[len(answer)]: 0.0}
    forced_by_bias = {token for token, bias in s.logit_bias.items() if bias >= 100}
    out = {}
    for token, given in enumerate(logits):
        logit = given
        if s.repetition_penalty != 1.0 and token in context:
            logit = logit / s.repetition_penalty if logit > 0 else logit * s.repetition_penalty
        times = answer.count(token)
        if times:
            logit -= s.frequency_penalty * times + s.presence_penalty
        if completes_an_old_ngram(context, token, s.no_repeat_ngram):
            continue
        bias = s.logit_bias.get(token, 0.0)
        if bias <= -100 or token in s.banned or (forced_by_bias and token not in forced_by_bias):
            continue
        if token in s.eos and len(answer) < s.min_tokens:
            continue
        if logit + bias > -math.inf:
            out[token] = logit + bias
    return out


def completes_an_old_ngram(context: Sequence[int], token: int, n: int) -> bool:
    """Whether context + token would end in an n-gram that context already holds."""
    if n == 0:
        return False
    grams = [list(context[i : i + n]) for i in range(len(context) - n + 1)]
    return [*context, token][-n:] in grams


def reference(
    logits: Sequence[float], context: Sequence[int], prompt_length: int, s: Sampling
) -> dict[int, float]:
    """Token -> probability under the whole pipeline; empty where no token is left."""
    left = adjusted(logits, context, prompt_length, s)
    if not left:
        return {}
    order = sorted(left, key=lambda token: (-left[token], token))
    if s.temperature < 1e-5:
        return {order[0]: 1.0}
    if s.top_k:
        order = order[: s.top_k]
    best = left[order[0]]
    weight = {token: math.exp((left[token] - best) / s.temperature) for token in order}
    total = math.fsum(weight.values())
    if s.top_p < 1.0:
        kept: list[int] = []
        for token in order:
            if math.fsum(weight[k] for k in kept) / total >= s.top_p:
                break
            kept.append(token)
        order = kept
    order = [token for token in order if weight[token] >= s.min_p]
    total = math.fsum(weight[token] for token in order)
    return {token: weight[token] / total for token in sorted(order)}


def near_a_cut(logits: Sequence[float], context: Sequence[int], prompt_length: int, s: Sampling) -> bool:
    """Whether rounding alone decides which side of top_p or min_p some token falls on."""
    left = adjusted(logits, context, prompt_length, s)
    order = sorted(left, key=lambda token: (-left[token], token))[: s.top_k or None]
    if s.temperature < 1e-5 or not order:
        return False
    weight = [math.exp((left[token] - left[order[0]]) / s.temperature) for token in order]
    total = math.fsum(weight)
    running = [math.fsum(weight[: i + 1]) / total for i in range(len(weight))]
    return (s.top_p < 1.0 and any(abs(r - s.top_p) < 1e-9 for r in running)) or (
        s.min_p < 1.0 and any(abs(w - s.min_p) < 1e-9 for w in weight)
    )


def plain_law(next_token: NextToken, length: int) -> Law:
    """The law of `length` tokens decoded one by one."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*path, token): mass * share
            for path, mass in law.items()
            for token, share in next_token(path).items()
            if share > 0.0
        }
    return law


def distance(a: Law, b: Law) -> float:
    """Largest difference of probability between two laws."""
    return max(abs(a.get(path, 0.0) - b.get(path, 0.0)) for path in {*a, *b})
