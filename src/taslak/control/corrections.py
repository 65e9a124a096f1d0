"""What steps have taught of the costs, kept from one run to the next beside what was measured.

It is believed less the older it is: after `HALF_LIFE` half of it, in logarithms, and so on down to what was
measured. A program that shares the machine for an afternoon makes some things dearer than others; a day or
two later that should be forgotten, while what steps say day after day stays. No figure is believed to be
more than `MOST` times off. How slow everything is just now (`Costs.scale`) isn't kept at all: a few steps
tell, and no decision depends on what all figures share.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taslak.control.costs import Costs
from taslak.models.loading import storage

log = logging.getLogger(__name__)

HALF_LIFE = 86400.0
"""Seconds."""
MOST = 3.0
EVERY = 60.0
"""Seconds from one writing to the next, at least."""
KEY = "learnt"
"""Of the file of a calibration, where corrections stand."""


def corrected(measured: Costs, learnt: Any, now: float) -> Costs:
    """What was measured, moved to what a Keeper has written of it. now: unix seconds.

    Raises AttributeError, KeyError, TypeError or ValueError for anything that no Keeper wrote, and for
    corrections of other passes than were measured.
    """
    weight = 0.5 ** (abs(now - learnt["at"]) / HALF_LIFE)  # of a clock that was wrong nothing is believed
    seen = Costs.from_json(learnt["costs"])
    if seen.passing.rows != measured.passing.rows:
        raise ValueError("they are of passes of other widths")
    base = measured.as_json()
    like = next(iter(base["rest"].values()), None)
    for mode, rest in learnt["costs"]["rest"].items():  # one never measured was begun like the first
        base["rest"].setdefault(mode, like or rest)
    for crowd in seen.crowds:
        base["crowds"].setdefault(crowd, 1.0)
    return Costs.from_json(_between(base, seen.as_json(), weight))


def _between(base: Any, seen: Any, weight: float) -> Any:
    """Every figure of `base`, moved towards that of `seen`."""
    if isinstance(base, dict):
        return {name: _between(value, seen.get(name, value), weight) for name, value in base.items()}
    if isinstance(base, list):
        return [_between(*pair, weight) for pair in zip(base, seen, strict=True)]
    if isinstance(base, float) and base > 0.0 and seen > 0.0:
        most = math.log(MOST)
        return base * math.exp(weight * min(max(math.log(seen / base), -most), most))
    return base


class Keeper:
    """Writes what `costs` have come to into the file of their calibration, if they have changed.

    Several processes may do so: the last one wins, and a reader sees the one or the other. Where a
    calibration was made anew meanwhile, or is gone, nothing is written: corrections are of what they were
    made to. Never raises: what isn't kept is learnt again.
    """

    def __init__(self, file: Path, costs: Costs, clock: Callable[[], float] = time.time) -> None:
        """costs: as they were read from the file, corrected. clock: unix seconds."""
        self._file = file
        self._costs = costs
        self._clock = clock
        self._measured = self._measurement()
        self._known = self._figures()
        self._last = clock()
        self._told = False

    def __call__(self) -> None:
        """To be called often."""
        if not 0.0 <= self._clock() - self._last < EVERY:
            self.close()

    def close(self) -> None:
        """Write now. May be called twice."""
        self._last = self._clock()
        try:
            figures = self._figures()
            kept = storage.read_json(self._file)
            if figures == self._known or self._measured is None or self._measurement() != self._measured:
                return
            storage.write_json(self._file, {**kept, KEY: {"at": self._last, "costs": figures}})
            self._known = figures
        except Exception as error:
            if not self._told:
                self._told = True
                log.warning("what steps cost can't be kept in %s: %s", self._file, error)

    def _figures(self) -> dict[str, Any]:
        return {**self._costs.as_json(), "scale": 1.0}

    def _measurement(self) -> Any:
        """What the file says was measured; None where there is no such file."""
        kept = storage.read_json(self._file)
        return kept.get("costs") if isinstance(kept, dict) else None
