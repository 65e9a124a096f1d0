"""The two checks that every verifier, right or wrong, is put to: an exact one and a sampled one."""

from __future__ import annotations

from collections import Counter
from functools import cache

from scipy import stats

from taslak.core.noise import Stream
from taslak.core.verify import Verifier

from .drafting import Grower, Script, enumerated, hashed
from .enumeration import emitted_law, sampled_law
from .reference import Law, distance, plain_law

EXACT = 1e-9
"""Float64 sums of at most thousands of terms; a wrong rule shows at 1e-3 and up."""

SEEDS = 3000
SIGNIFICANCE = 1e-4
"""The noise is a hash of fixed seeds, so a test that passes once passes always."""


def law_error(verifier: Verifier, grower: Grower, script: Script, length: int) -> float:
    """How far the law of the next `length` tokens is from plain decoding, by enumeration."""
    next_token = cache(script.next_token)
    law = emitted_law(
        verifier, lambda choices: grower(enumerated(choices)), cache(script.p), next_token, length
    )
    assert abs(sum(law.values()) - 1.0) < EXACT
    return distance(law, plain_law(next_token, length))


def p_value(
    verifier: Verifier, grower: Grower, script: Script, length: int, stream: Stream, seeds: int = SEEDS
) -> float:
    """Chi-squared of `seeds` runs with the real noise; the drafter draws from `stream`."""
    counts = sampled_law(verifier, lambda key: grower(hashed(key, stream)), cache(script.p), length, seeds)
    return goodness_of_fit(counts, plain_law(cache(script.next_token), length))


def goodness_of_fit(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """p-value of the counts under the law; cells expecting fewer than five are pooled."""
    assert set(counts) <= set(law), "a token of probability zero was emitted"
    total = sum(counts.values())
    large = [path for path, mass in law.items() if mass * total >= 5]
    seen = [counts[path] for path in large]
    expected = [law[path] * total for path in large]
    rest = total - sum(expected)
    if rest > 1e-6 * total:
        seen.append(total - sum(seen))
        expected.append(rest)
    return float(stats.chisquare(seen, expected).pvalue) if len(seen) > 1 else 1.0


def power(effect: float, cells: int, seeds: int = SEEDS) -> float:
    """Chance that `p_value` < SIGNIFICANCE when the law is off by Cohen's w = `effect`."""
    freedom = cells - 1
    return float(stats.ncx2.sf(stats.chi2.isf(SIGNIFICANCE, freedom), freedom, seeds * effect**2))
