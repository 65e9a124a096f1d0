"""Exact laws of randomised code: run it once for every way its random choices can fall.

`Choices.every` replays a function over the whole tree of choices. `symbolic` puts two stand-ins into
`core`: an accept uniform that answers comparisons (and weighs each answer by the length of the interval left
to it) and a draw that takes each token of its support in turn. The same noise address used for two draws is
an error, because independent choices are what the enumeration assumes: shared streams are caught here, and
what sharing does to the law is measured with the real noise (see `sampled_law`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import pytest

from taslak.core import verify
from taslak.core.draft import EMPTY, Draft
from taslak.core.noise import Stream, noise_key
from taslak.core.sampling import Distribution
from taslak.core.verify import Decision

from .reference import Law, NextToken

T = TypeVar("T")


class SharedNoise(AssertionError):
    """One noise address was used for two purposes."""


@dataclass
class Choices:
    """One path through the tree of choices; `mass` is its probability."""

    prefix: list[int]
    widths: list[int] = field(default_factory=list)
    mass: float = 1.0
    addresses: set[tuple[Stream, int]] = field(default_factory=set)

    def pick(self, options: list[tuple[T, float]]) -> T:
        options = [(value, share) for value, share in options if share > 0.0]
        at = len(self.widths)
        if at == len(self.prefix):
            self.prefix.append(0)
        self.widths.append(len(options))
        value, share = options[self.prefix[at]]
        self.mass *= share
        return value

    def claim(self, stream: Stream, position: int) -> None:
        if (stream, position) in self.addresses:
            raise SharedNoise(f"{stream.name} noise at position {position} was used twice")
        self.addresses.add((stream, position))

    @classmethod
    def every(cls, run: Callable[[Choices], T]) -> Iterator[tuple[T, float]]:
        """(result, probability) of each path; the probabilities sum to one."""
        prefix: list[int] = []
        while True:
            choices = cls(prefix)
            result = run(choices)
            yield result, choices.mass
            while prefix and prefix[-1] + 1 == choices.widths[len(prefix) - 1]:
                prefix.pop()
            if not prefix:
                return
            prefix[-1] += 1


class Uniform:
    """A number in [low, high) that nobody has looked at yet."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.low, self.high = choices, 0.0, 1.0

    def below(self, threshold: float) -> bool:
        if threshold >= self.high:
            return True
        if threshold <= self.low:
            return False
        share = (threshold - self.low) / (self.high - self.low)
        if self.choices.pick([(True, share), (False, 1.0 - share)]):
            self.high = threshold
            return True
        self.low = threshold
        return False

    def __mul__(self, q: float) -> Scaled:
        return Scaled(self, q)

    __rmul__ = __mul__

    def __lt__(self, threshold: float) -> bool:
        return self.below(threshold)

    __le__ = __lt__


class Scaled:
    """u · q, to be compared."""

    def __init__(self, u: Uniform, q: float) -> None:
        self.u, self.q = u, q

    def __lt__(self, r: float) -> bool:
        return self.u.below(r / self.q) if self.q > 0.0 else r > 0.0

    def __le__(self, r: float) -> bool:
        return self.u.below(r / self.q) if self.q > 0.0 else r >= 0.0


def symbolic(monkeypatch: pytest.MonkeyPatch, choices: Choices) -> None:
    """Put the stand-ins into `core`, fed by `choices`."""
    uniforms: dict[tuple[Stream, int, int], Uniform] = {}

    def uniform_at(key: int, stream: Stream, position: int, index: int) -> Uniform:
        return uniforms.setdefault((stream, position, index), Uniform(choices))

    def draw(self: Distribution, key: int, stream: Stream, position: int) -> int:
        choices.claim(stream, position)
        return choices.pick(list(zip(self.ids.tolist(), self.softmax().tolist(), strict=True)))

    monkeypatch.setattr(verify, "uniform_at", uniform_at)
    monkeypatch.setattr(Distribution, "draw", draw)


MakeDraft = Callable[[Choices], Draft]
Target = Callable[[tuple[int, ...]], Distribution]


def passes(
    verifier: verify.Verifier, make: MakeDraft, target: Target, length: int | None = None
) -> Iterator[tuple[Draft, list[Decision], float]]:
    """Every way one pass can go: the draft, what was decided (at most `length` tokens), its probability."""
    with pytest.MonkeyPatch.context() as monkeypatch:

        def run(choices: Choices) -> tuple[Draft, list[Decision]]:
            symbolic(monkeypatch, choices)
            draft = make(choices)
            decisions = verifier(draft, lambda node: target(tuple(draft.branch(node))), 0, 0)
            return draft, list(islice(decisions, length))

        for (draft, decisions), mass in Choices.every(run):
            yield draft, decisions, mass


def emitted_law(
    verifier: verify.Verifier, make: MakeDraft, target: Target, next_token: NextToken, length: int
) -> Law:
    """The law of the next `length` tokens when the first pass verifies a draft of `make`; what that pass
    does not reach is decoded plainly."""
    law: Law = {}
    for _, decisions, mass in passes(verifier, make, target, length):
        path = tuple(decision.token for decision in decisions)
        law[path] = law.get(path, 0.0) + mass
    return completed(law, next_token, length)


def completed(law: Law, next_token: NextToken, length: int) -> Law:
    """Shorter paths continued by plain decoding."""
    whole: Law = {}
    for path, mass in law.items():
        ends: Law = {path: mass}
        while any(len(end) < length for end in ends):
            ends = {
                (*end, token): m * share
                for end, m in ends.items()
                for token, share in next_token(end).items()
                if share > 0.0
            }
        for end, m in ends.items():
            whole[end] = whole.get(end, 0.0) + m
    return whole


def sampled_law(
    verifier: verify.Verifier, make: Callable[[int], Draft], target: Target, length: int, seeds: int
) -> Counter[tuple[int, ...]]:
    """How often each sequence of `length` tokens comes out over many seeds, with the real noise in every
    draw: passes after the first verify an empty draft."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(seeds):
        key = noise_key(seed)
        path = next_tokens(verifier, make(key), target, (), key, length)
        while len(path) < length:
            path += next_tokens(verifier, EMPTY, target, path, key, 1)
        counts[path] += 1
    return counts


def next_tokens(
    verifier: verify.Verifier, draft: Draft, target: Target, path: tuple[int, ...], key: int, length: int
) -> tuple[int, ...]:
    """At most `length` tokens of one pass after `path`."""
    decisions = verifier(draft, lambda node: target((*path, *draft.branch(node))), key, len(path))
    return tuple(decision.token for decision in islice(decisions, length))
