"""Drafters that know the answer, or are sure to get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget, Needs, Report, View


class Scripted:
    """Drafts a chain from a script: (tokens committed so far, depth) -> tokens."""

    def __init__(self, script: Callable[[Sequence[int], int], Sequence[int]]) -> None:
        self.needs = Needs()
        self.watch = None
        self._script = script
        self.seen: list[Report] = []

    def propose(self, views: Sequence[View], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            Draft.chain(list(self._script(view.tokens, budget.depth))[: budget.depth])
            if budget.depth
            else EMPTY
            for view, budget in zip(views, budgets, strict=True)
        ]

    def observe(self, views: Sequence[View], reports: Sequence[Report]) -> None:
        self.seen += reports

    def lag(self, view: View) -> int:
        return 0

    def forget(self, view: View) -> None:
        view.state = None


def oracle(answers: Sequence[Sequence[int]]) -> Scripted:
    """Proposes the target's own continuation: whole texts (prompt + plain answer) it knows by heart."""

    def script(tokens: Sequence[int], depth: int) -> Sequence[int]:
        for whole in answers:
            if list(whole[: len(tokens)]) == list(tokens):
                return whole[len(tokens) : len(tokens) + depth]
        return ()

    return Scripted(script)


def flip(answers: Sequence[Sequence[int]], right: int, vocab_size: int) -> Scripted:
    """Right `right` times, then wrong to the end of the draft. flip(…, 0) is ANTI."""
    know = oracle(answers)._script

    def script(tokens: Sequence[int], depth: int) -> Sequence[int]:
        truth = list(know(tokens, depth))
        return truth[:right] + [(token + 1) % vocab_size for token in truth[right:]]

    return Scripted(script)


def nothing() -> Scripted:
    """Proposes nothing."""
    return Scripted(lambda tokens, depth: ())
