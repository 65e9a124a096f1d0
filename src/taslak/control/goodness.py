"""Pearson's chi-squared test of counts against a known distribution, and what it would have noticed.

Knows nothing about models. In float64, from the incomplete gamma function alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST = 5.0
"""A cell expecting fewer is pooled with others: the statistic is chi-squared only for larger ones."""

POWER = 0.9
"""With this chance the smallest shift that is told would have been noticed."""


@dataclass(frozen=True, slots=True)
class Fit:
    """
    p_value:         chance of counts at least so far from the distribution, if they come from it; 0 where
                     something impossible was counted
    samples, cells:  how many, after pooling
    noticed:         the smallest share of all samples whose move, from the likeliest cell to the next, would
                     be noticed with chance POWER at this significance
    """

    p_value: float
    samples: int
    cells: int
    noticed: float


def goodness_of_fit(counts: Mapping[Any, int], law: Mapping[Any, float], significance: float) -> Fit:
    """counts: by outcome; law: the probability of every possible outcome, summing to one."""
    samples = sum(counts.values())
    large = [outcome for outcome, mass in law.items() if mass * samples >= LEAST]
    seen = [counts.get(outcome, 0) for outcome in large]
    masses = [law[outcome] for outcome in large]
    rest = 1.0 - sum(masses)
    if rest * samples >= 1.0:  # what is rarer still is not a cell; it can hardly hold a count
        masses.append(rest)
        seen.append(samples - sum(seen))
    freedom = len(masses) - 1
    noticed = _noticed(masses, samples, freedom, significance)
    if any(law.get(outcome, 0.0) <= 0.0 for outcome in counts):
        return Fit(0.0, samples, len(masses), noticed)
    if freedom < 1:
        return Fit(1.0, samples, len(masses), noticed)
    statistic = sum((n - samples * p) ** 2 / (samples * p) for n, p in zip(seen, masses, strict=True))
    return Fit(_upper_tail(statistic, freedom), samples, len(masses), noticed)


def _upper_tail(statistic: float, freedom: float) -> float:
    """P(χ² > statistic)."""
    half = torch.tensor((freedom / 2.0, statistic / 2.0), dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _noticed(masses: list[float], samples: int, freedom: int, significance: float) -> float:
    """The smallest share moved from the likeliest cell to the next that is noticed with chance POWER."""
    if freedom < 1:
        return 1.0
    first, second = sorted(masses, reverse=True)[:2]
    critical = _bisect(lambda x: _upper_tail(x, freedom) < significance, 0.0, 1000.0 + 10.0 * freedom)
    spread = samples * (1.0 / first + 1.0 / second)

    def enough(share: float) -> bool:
        return _power(spread * share * share, critical, freedom) >= POWER

    return _bisect(enough, 0.0, 1.0) if enough(1.0) else 1.0


def _power(noncentrality: float, critical: float, freedom: int) -> float:
    """P(noncentral χ² > critical): a Poisson mixture of central ones."""
    mean = noncentrality / 2.0
    most = int(mean + 12.0 * math.sqrt(mean) + 30.0)
    j: Tensor = torch.arange(most, dtype=torch.float64)
    log_weight = (
        j * math.log(mean) - mean - torch.lgamma(j + 1.0) if mean > 0 else torch.log((j == 0).double())
    )
    tail = torch.special.gammaincc(freedom / 2.0 + j, torch.full_like(j, critical / 2.0))
    return float((log_weight.exp() * tail).sum())


def _bisect(holds: Any, low: float, high: float) -> float:
    """The smallest number for which it holds, if it holds from there on and at `high`."""
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
