"""What is compared: ways to answer under settings, and which prompts each of these cells gets.

The first value of every list is its base. With the base of all of them every prompt is answered; the other
values are varied one at a time, over fewer prompts. `cross` asks for all combinations instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from taslak.errors import OptionError

PLAIN = "plain"
"""The method of decoding without speculation."""


@dataclass(frozen=True, slots=True)
class Way:
    """How prompts are answered. gamma: drafted depth of every step; None = chosen as answers go, as where a
    user gives none."""

    method: str
    gamma: int | None = None

    @property
    def name(self) -> str:
        return self.method if self.gamma is None else f"{self.method}, γ {self.gamma}"


PLAINLY = Way(PLAIN)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all ways that are compared.

    context:     tokens that prompts are padded to; 0 = as they are
    max_tokens:  most tokens of an answer
    batch:       prompts answered together
    """

    temperature: float = 0.0
    context: int = 0
    max_tokens: int = 96
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """The ways that take turns under one setting. everywhere: over every prompt, not over few."""

    setting: Setting
    ways: tuple[Way, ...]
    everywhere: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Raises OptionError for an empty list, a repeated value, or a value out of range."""

    methods: tuple[str, ...]
    gammas: tuple[int | None, ...] = (None, 1, 2, 4, 8)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    contexts: tuple[int, ...] = (0, 512, 1024)
    max_tokens: tuple[int, ...] = (96, 16, 256)
    batches: tuple[int, ...] = (1, 4, 8)
    cross: bool = False

    def __post_init__(self) -> None:
        for name, values, least, most in (
            ("methods", self.methods, None, None),
            ("gamma", self.gammas, 1, 16),
            ("temperature", self.temperatures, 0, 100),
            ("context", self.contexts, 0, None),
            ("max_tokens", self.max_tokens, 1, None),
            ("batch", self.batches, 1, 64),
        ):
            _check(name, values, least, most)

    @property
    def base(self) -> Setting:
        return Setting(self.temperatures[0], self.contexts[0], self.max_tokens[0], self.batches[0])

    @property
    def base_ways(self) -> tuple[Way, ...]:
        """One a method."""
        return tuple(Way(method, self.gammas[0]) for method in self.methods)

    def rounds(self) -> list[Round]:
        """All that is to be run; plain decoding is the first of the ways of every round."""
        ways = self.base_ways
        swept = tuple(Way(method, gamma) for gamma in self.gammas[1:] for method in self.methods)
        if self.cross:
            settings = [
                Setting(*values)
                for values in product(self.temperatures, self.contexts, self.max_tokens, self.batches)
            ]
            rounds = [Round(setting, (PLAINLY, *ways, *swept), everywhere=True) for setting in settings]
        else:
            rounds = [Round(self.base, (PLAINLY, *ways), everywhere=True)]
            if swept:
                rounds.append(Round(self.base, (PLAINLY, *swept), everywhere=False))
            rounds += [Round(setting, (PLAINLY, *ways), everywhere=False) for setting in self._varied()]
        return rounds

    def _varied(self) -> list[Setting]:
        base = self.base
        return [
            *(replace(base, temperature=value) for value in self.temperatures[1:]),
            *(replace(base, context=value) for value in self.contexts[1:]),
            *(replace(base, max_tokens=value) for value in self.max_tokens[1:]),
            *(replace(base, batch=value) for value in self.batches[1:]),
        ]


def _check(name: str, values: Sequence[object], least: float | None, most: float | None) -> None:
    if not values:
        raise OptionError(f"no {name} is given; expected at least one")
    if len(set(values)) < len(values):
        raise OptionError(f"{name} names a value twice: {', '.join(map(str, values))}; leave one out")
    for value in values:
        if isinstance(value, int | float) and (
            (least is not None and not value >= least) or (most is not None and not value <= most)
        ):
            span = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
            raise OptionError(f"{name} is {value}; expected {span}")
