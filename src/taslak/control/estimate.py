"""How much of a drafter's drafts one request accepts: a running estimate, depth by depth.

Of one request and drafter alone; nothing is shared. Starts from what is known beforehand (`Prior`) and
forgets, since text changes: after `MEMORY` drafts a draft counts for a third.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taslak.core.draft import Draft
from taslak.core.sampling import GREEDY_BELOW

MEMORY = 48
_GROW = math.exp(1.0 / MEMORY)
WEIGHT, LEAST = 10.0, 0.25
"""Drafts that what is known beforehand counts for: at first, and for ever. Requests differ in a head's first
hazard with a standard deviation of about 0.13, which a beta distribution of weight 13 has; with 3 a head was
given up for good after a handful of unlucky drafts."""

HOPELESS, NEVER = 0.1, 0.02
"""Of requests so many are expected in which a drafter is never right, that is, so rarely. Without them a
dozen drafts that all failed would still be outweighed by what was known beforehand."""

DEEPEST = 16
"""Depths that are kept apart."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is thought of a drafter before a request has shown anything.

    yields: [d] P(depth d + 1 accepted | depth d accepted, and the drafter was allowed to go there)
    reach:  [d] P(a draft has depth d + 1 | the drafter was allowed to go there, and drafted)
    trust:  accepted tokens over those the drafter expected to be
    Past the end the last value goes on.
    """

    yields: Sequence[float] = (0.6,)
    reach: Sequence[float] = (1.0,)
    trust: float = 1.0

    def as_json(self) -> dict[str, Any]:
        return {"yields": [*self.yields], "reach": [*self.reach], "trust": self.trust}


WARM, HOT = 0.8, 1.2
"""Temperatures at which priors of drawn answers are measured."""


def drawn(drafter: str) -> str:
    """The name of a drafter's prior where answers are drawn at WARM."""
    return f"{drafter}, drawn"


def hot(drafter: str) -> str:
    """The same at HOT."""
    return f"{drafter}, hot"


def start(priors: Mapping[str, Prior], drafter: str, temperature: float) -> Prior:
    """What a request starts from: what was measured greedy, at WARM, at HOT, or between these two."""
    greedy = priors.get(drafter, Prior())
    if temperature < GREEDY_BELOW:
        return greedy
    warm = priors.get(drawn(drafter), greedy)
    share = min(max((temperature - WARM) / (HOT - WARM), 0.0), 1.0)
    return _between(warm, priors.get(hot(drafter), warm), share)


def _between(one: Prior, other: Prior, share: float) -> Prior:
    """So much of the other."""
    if share == 0.0 or one is other:
        return one

    def mixed(a: Sequence[float], b: Sequence[float]) -> list[float]:
        deepest = max(len(a), len(b))
        pairs = ((a[min(d, len(a) - 1)], b[min(d, len(b) - 1)]) for d in range(deepest))
        return [x + share * (y - x) for x, y in pairs]

    trust = one.trust + share * (other.trust - one.trust)
    return Prior(mixed(one.yields, other.yields), mixed(one.reach, other.reach), trust)


@dataclass(slots=True)
class Estimate:
    """yields and reach as in Prior, learnt. A depth not drafted because the drafter ended early counts as not
    accepted: `yields` is the hazard times how often the drafter gets that far."""

    prior: Prior = field(default_factory=Prior)
    _now: float = 1.0
    """What a draft counts for now: growing, where dividing all others would cost."""
    _first: float = WEIGHT
    """What the prior counts for on the same scale."""
    _asked: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    _got: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    _allowed: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    _reached: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    _size: float = 3.0
    _thought: float = 0.0
    _right: float = 0.0

    def record(self, draft: Draft, allowed: int, accepted: int, censored: bool) -> None:
        """Add one draft. allowed: the depth it might have had; accepted: depth of the accepted path;
        censored: the answer ended with it, and nothing deeper was judged."""
        self._now *= _GROW
        if self._now > 1e12:
            self._shrink()
        now, depth = self._now, draft.depth
        most = min(allowed, DEEPEST)
        _add(self._allowed, most, now)
        _add(self._reached, min(depth, most), now)
        judged = accepted if censored else accepted + 1
        _add(self._asked, min(judged, most), now)
        _add(self._got, min(accepted, most), now)
        if draft.confidence is not None and not censored:
            self._thought += now * sum(draft.confidence)
            self._right += now * accepted
        self._size += (len(draft) - self._size) / MEMORY

    def yields(self, depth: int) -> list[float]:
        """[depth] each P(accepted | the one before is)."""
        known, found = self.prior.yields, []
        last, prior = 1.0, 1.0
        weight = self._weight
        for d in range(depth):
            own = known[d] if d < len(known) else known[-1]
            # a request that is better or worse than thought at one depth is so at the next as well
            mean = own if d == 0 or prior <= 0.0 else min(own * last / prior, 1.0)
            last = (self._got[d] + weight * mean) / (self._asked[d] + weight) if d < DEEPEST else mean
            if d == 0:
                lost = self._lost(own, weight)
                last += lost * (min(NEVER, last) - last)
            prior = own
            found.append(last)
        return found

    def _lost(self, own: float, weight: float) -> float:
        """P(this is one of the hopeless requests), from the first depth: a mixture of two beliefs, weighed by
        how likely each made what was seen (beta-binomial against a fixed rate). own: of the prior."""
        scale = self._now
        right = self._got[0] / scale
        wrong = self._asked[0] / scale - right
        if wrong <= right or not NEVER < own < 1.0:
            return 0.0
        a, b = own * weight / scale, (1.0 - own) * weight / scale
        likely = _log_beta(a + right, b + wrong) - _log_beta(a, b)
        hopeless = right * math.log(NEVER) + wrong * math.log1p(-NEVER)
        odds = math.exp(min(hopeless - likely, 700.0)) * HOPELESS / (1.0 - HOPELESS)
        # what is known beforehand is the mean over all requests, the hopeless among them
        return max(odds / (1.0 + odds) - HOPELESS, 0.0) / (1.0 - HOPELESS)

    def reach(self, depth: int) -> list[float]:
        """[depth] each P(a draft gets so deep)."""
        known, found = self.prior.reach, []
        weight = self._weight
        for d in range(min(depth, DEEPEST)):
            own = known[d] if d < len(known) else known[-1]
            found.append((self._reached[d] + weight * own) / (self._allowed[d] + weight))
        return found

    @property
    def trust(self) -> float:
        """Accepted tokens over those the drafter expected to be, the sum of its joint confidences."""
        weight = self._weight
        return (self._right + weight * self.prior.trust) / (self._thought + weight)

    @property
    def size(self) -> float:
        """Nodes that a draft has."""
        return self._size

    @property
    def _weight(self) -> float:
        """What the prior counts for, on the scale of `_now`: it is forgotten as all else is."""
        return max(self._first, LEAST * self._now)

    def fade(self) -> None:
        """Time has passed without a draft: what is known counts for less."""
        self._now *= _GROW
        if self._now > 1e12:
            self._shrink()

    def _shrink(self) -> None:
        for values in (self._asked, self._got, self._allowed, self._reached):
            values[:] = [value / self._now for value in values]
        self._first /= self._now
        self._thought /= self._now
        self._right /= self._now
        self._now = 1.0


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _add(values: list[float], count: int, more: float) -> None:
    """To the first `count`."""
    values[:count] = [value + more for value in values[:count]]
