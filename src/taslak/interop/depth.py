"""How deep a drafter is worth drafting, from what was measured of it.

Another machine has other costs: what is said here is where to begin there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taslak.control.experience import LEAST
from taslak.control.history import History
from taslak.control.summary import add_up
from taslak.control.theory import best_gamma, predicted_speedup, reach
from taslak.drafters import base
from taslak.drafters.formats import Head
from taslak.errors import OptionError
from taslak.loading import GAMMA
from taslak.models.loading.storage import read_json

MOST = 128
"""Deeper than any drafter here goes, and than any engine is worth."""


@dataclass(frozen=True, slots=True)
class Depth:
    """gamma: the drafted depth of a step; source: where it is from, for a person."""

    gamma: int
    source: str


def depth(
    kind: str,
    target: str | None,
    *,
    asked: int | None = None,
    head: Head | None = None,
    folder: Path | None = None,
    history: History | None = None,
) -> Depth:
    """What was asked for, else what requests here say, else the evaluation of its training, else its file.

    kind:    of drafter, as methods are named
    target:  as the history names it; None = any
    folder:  where the drafter lies: requests before its config.json was written were drafted by another one,
             and its training may have left an evaluation.json
    history: None = none is kept

    Raises OptionError for a depth out of range.
    """
    if asked is not None:
        if not 1 <= asked <= MOST:
            raise OptionError(f"gamma is {asked}; expected 1 to {MOST}")
        return Depth(asked, "as asked for")
    found = None
    if history is not None:
        found = _from_history(kind, target, folder, history)
    if found is None and folder is not None:
        found = _from_evaluation(read_json(folder / "evaluation.json"))
    if found is None and head is not None and head.drafting is not None:
        found = Depth(head.drafting.gamma, "what the head's file says it is used best with")
    return found or Depth(GAMMA, "nothing was measured: taslak's default")


def best(
    hazards: Sequence[float], tau: float, speedup: float, levels: float, reached: Sequence[float]
) -> Depth:
    """The depth that gains most where drafting costs what it did.

    hazards, reached:  as in `predicted_speedup`; no deeper than these is looked
    tau, speedup:      measured, while `levels` were drafted in a step on average
    """
    # a step took τ / S plain passes; what it took beyond one, its drafted levels share
    cost = max(tau / speedup - 1.0, 0.0) / levels
    often = reached[0] if reached else 1.0
    speedups = [
        predicted_speedup(
            hazards,
            gamma,
            passing=lambda _rows: 1.0,
            draft=lambda drafted: often * cost * drafted,
            reach=reached,
        )
        for gamma in range(1, len(hazards) + 1)
    ]
    gamma = best_gamma(speedups)
    figures = f"τ {tau:.2f}, {speedup:.2f} times plain, a drafted level costs {cost:.2f} of a plain pass"
    return Depth(max(gamma, 1), figures if gamma else f"{figures}: drafting did not pay")


def _from_history(kind: str, target: str | None, folder: Path | None, history: History) -> Depth | None:
    file = None if folder is None else folder / "config.json"
    written = file.stat().st_mtime if file is not None and file.is_file() else None
    whole = add_up(kind, history.select(written, model=target, method=kind))
    counts = whole.counts
    if whole.requests < LEAST or not counts.drafted or not counts.tau or not whole.speedup:
        return None
    # of a drafter that computes, how deep it was let go is not how deep it would
    reached = reach(counts) if base.method(kind).looks_up else []
    found = best(counts.hazards, counts.tau, whole.speedup, counts.drafted / counts.passes, reached)
    return Depth(found.gamma, f"{whole.requests} requests here: {found.source}")


def _from_evaluation(values: Any) -> Depth | None:
    """From what training measured on held-out prompts; None where there is nothing of use."""
    try:
        hazards = [float(a) for a in values["hazards"]]
        plain, fast = float(values["plain_tokens_per_second"]), float(values["tokens_per_second"])
        found = best(hazards, float(values["tau"]), fast / plain, float(values["gamma"]), [])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return Depth(found.gamma, f"its evaluation on held-out prompts: {found.source}") if hazards else None
