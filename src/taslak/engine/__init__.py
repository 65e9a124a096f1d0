"""Propose, forward, verify, commit: the one loop, for many sequences at once."""

from __future__ import annotations

from taslak.engine.compare import Comparison, Difference, answer_json
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer, Event, Request, Seconds
from taslak.engine.usage import Statistics, Weights

__all__ = [
    "Answer",
    "Comparison",
    "Difference",
    "Event",
    "LanguageModel",
    "Request",
    "Seconds",
    "Statistics",
    "Weights",
    "answer_json",
]
