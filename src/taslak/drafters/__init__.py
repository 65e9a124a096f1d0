"""The drafting methods. Importing this package fills the registry."""

from __future__ import annotations

from taslak.drafters import cross_vocab, draft_model, eagle, early_exit, medusa, ngram, suffix
from taslak.drafters.base import REGISTRY, Budget, Drafter, DrafterOptions, Needs, Report, View, build

__all__ = [
    "REGISTRY",
    "Budget",
    "Drafter",
    "DrafterOptions",
    "Needs",
    "Report",
    "View",
    "build",
    "cross_vocab",
    "draft_model",
    "eagle",
    "early_exit",
    "medusa",
    "ngram",
    "suffix",
]
