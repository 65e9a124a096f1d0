"""A drafter beside plain decoding: it drafts in every step, and nothing of it is verified."""

from __future__ import annotations

from collections.abc import Sequence

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget, Drafter, Report, View


class Aside:
    """Has a drafter draft `depth` tokens in every step and hands on nothing: the target decodes plainly.

    Unlike a budget's `shadow`, drafts may go past the end of the answer.
    """

    def __init__(self, drafter: Drafter, depth: int) -> None:
        self.needs = drafter.needs
        self.watch = None  # no pass judges these drafts
        self._drafter = drafter
        self._depth = depth

    def made(self, view: View, draft: Draft) -> None:
        """A draft for what follows the view's tokens."""
        raise NotImplementedError

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        del budgets  # they end where the answer may; what would come after is drafted all the same
        deep = [Budget(self._depth, self._depth) for _ in views]
        for view, draft in zip(views, self._drafter.propose(views, deep), strict=True):
            self.made(view, draft)
        return [EMPTY] * len(views)

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        self._drafter.observe(views, reports)

    def lag(self, view: View) -> int:
        return self._drafter.lag(view)

    def forget(self, view: View) -> None:
        self._drafter.forget(view)
