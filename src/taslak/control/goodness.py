"""Pearson's chi-squared test of counts against a known distribution, and what it would have noticed.

Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LEAST = 5.0
"""A cell expects at least so many; the outcomes that don't are looked at together."""

POWER = 0.9
"""With this chance the smallest shift that is told would have been noticed."""

CLOSE = 20.0
"""A p-value under so many times the significance is found again by simulation: far out the statistic is not
quite chi-squared."""
ROUNDS, EACH = 50, 20_000
"""Of simulated counts: together they resolve 1e-6."""


@dataclass(frozen=True, slots=True)
class Fit:
    """
    p_value:         chance of counts at least so far from the distribution, if they come from it; 0 where
                     something impossible was counted
    samples, cells:  how many; the rare outcomes together are one cell where they expect enough
    noticed:         the smallest share of all samples whose move, from the likeliest cell to the next, would
                     be noticed with chance POWER at this significance; None where no move would
    """

    p_value: float
    samples: int
    cells: int
    noticed: float | None


def goodness_of_fit(counts: Mapping[Any, int], law: Mapping[Any, float], significance: float) -> Fit:
    """counts: by outcome; law: the probability of every possible outcome, summing to one.

    Rare outcomes that together expect too few for a cell are tested by themselves: more of them than a
    Poisson variable would give is as bad as a cell that is off, and either may make half of the false alarms.
    """
    samples = sum(counts.values())
    large = [outcome for outcome, mass in law.items() if mass * samples >= LEAST]
    seen = [counts.get(outcome, 0) for outcome in large]
    masses = [law[outcome] for outcome in large]
    rare, expected = samples - sum(seen), max(1.0 - sum(masses), 0.0) * samples
    rare_tail = 1.0
    if expected >= LEAST:
        masses.append(1.0 - sum(masses))
        seen.append(rare)
    elif rare > 0:
        rare_tail = _poisson_tail(rare, expected)
    whole = sum(masses)
    masses = [mass / whole for mass in masses]  # of the cells, given that it is one of them
    noticed = _noticed(masses, sum(seen), significance / 2)
    if any(law.get(outcome, 0.0) <= 0.0 for outcome in counts):
        return Fit(0.0, samples, len(masses), noticed)
    p_value = _chi_squared(seen, masses, significance / 2)
    return Fit(min(1.0, 2.0 * min(p_value, rare_tail)), samples, len(masses), noticed)


def _chi_squared(seen: list[int], masses: list[float], significance: float) -> float:
    """p-value of counts in cells."""
    if len(masses) < 2:
        return 1.0
    n = sum(seen)
    expected = n * np.array(masses)
    statistic = float(((np.array(seen) - expected) ** 2 / expected).sum())
    p_value = _upper_tail(statistic, len(masses) - 1)
    if p_value >= CLOSE * significance:
        return p_value
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(ROUNDS):
        drawn = generator.multinomial(n, masses, size=EACH)  # [EACH, cells]
        hits += int((((drawn - expected) ** 2 / expected).sum(1) >= statistic - 1e-9).sum())
    return (hits + 1) / (ROUNDS * EACH + 1)


def _upper_tail(statistic: float, freedom: float) -> float:
    """P(χ² > statistic)."""
    half = torch.tensor((freedom / 2.0, statistic / 2.0), dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _poisson_tail(least: int, mean: float) -> float:
    """P(Poisson(mean) ≥ least)."""
    pair = torch.tensor((float(least), max(mean, 1e-12)), dtype=torch.float64)
    return float(torch.special.gammainc(pair[0], pair[1]))


def _noticed(masses: list[float], samples: int, significance: float) -> float | None:
    """The smallest share moved from the likeliest cell to the next that is noticed with chance POWER."""
    if len(masses) < 2:
        return None
    freedom = len(masses) - 1
    first, second = sorted(masses, reverse=True)[:2]
    critical = _bisect(lambda x: _upper_tail(x, freedom) < significance, 0.0, 1000.0 + 10.0 * freedom)
    spread = samples * (1.0 / first + 1.0 / second)

    def enough(share: float) -> bool:
        return _power(spread * share * share, critical, freedom) >= POWER

    return _bisect(enough, 0.0, first) if enough(first) else None


def _power(noncentrality: float, critical: float, freedom: int) -> float:
    """P(noncentral χ² > critical): a Poisson mixture of central ones."""
    if noncentrality > 50.0 * (critical + freedom + 20.0):  # certain, and the sum would be long
        return 1.0
    mean = noncentrality / 2.0
    j = torch.arange(int(mean + 12.0 * math.sqrt(mean) + 30.0), dtype=torch.float64)
    log_weight = torch.xlogy(j, torch.full_like(j, mean)) - mean - torch.lgamma(j + 1.0)
    tail = torch.special.gammaincc(freedom / 2.0 + j, torch.full_like(j, critical / 2.0))
    return float((log_weight.exp() * tail).sum())


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number for which it holds, if it holds from there on and at `high`."""
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
