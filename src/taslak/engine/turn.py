"""What a step is made of: a turn for each sequence in it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from taslak.core.draft import EMPTY, Draft
from taslak.drafters.base import Budget
from taslak.engine.sequence import Sequence
from taslak.models.target import Rows

Plan = Mapping[str, Budget]
"""Which drafters may draft how much, in the order they are asked: the first draft that is not empty is
verified. One with a budget of no depth only hears of the pass; one that is not in the plan doesn't even, and
what it would have read of the pass isn't captured. An empty plan decodes plainly."""


@dataclass(slots=True, eq=False)
class Turn:
    """One sequence's part of a step.

    take:    committed tokens run in this pass
    decides: whether the pass reaches the last committed token; otherwise it is prefill
    plan:    who was allowed to draft
    by:      whose draft is verified; for an empty draft the first that was asked, None where nobody was
    shadows: drafts that were made to be scored against the text to come, and not verified
    spare:   a draft that gave way, and whose: verified where no later drafter has one
    path:    the accepted nodes, from the root's child on
    bonus:   whether the target added a token of its own
    """

    sequence: Sequence
    take: int
    decides: bool
    plan: Plan = field(default_factory=dict)
    by: str | None = None
    draft: Draft = EMPTY
    shadows: dict[str, Draft] = field(default_factory=dict)
    spare: tuple[str, Draft] | None = None
    path: list[int] = field(default_factory=list)
    bonus: bool = False

    @property
    def visited(self) -> int:
        """Rows that a token was drawn from: of each accepted one, and the one after the last."""
        return len(self.path) + self.bonus

    @property
    def rows_taken(self) -> int:
        """Rows of the pass that are its own."""
        return self.take + len(self.draft)

    def rows(self) -> Rows:
        """The committed tokens taken in as a chain, then the draft below the last of them."""
        s, n, partial = self.sequence, self.take, self.draft.partial
        if partial is None:
            s.cache.crop(s.cache.length)  # nodes that a dropped early-exit draft left behind
        start = s.cache.length
        return Rows(
            cache=s.cache,
            tokens=[*s.tokens[start : start + n], *self.draft.tokens],
            parents=[*range(-1, n - 1), *(n + parent for parent in self.draft.parents)],
            first=0,
            wanted=1 + len(self.draft) if self.decides else 0,
            starts=() if partial is None else partial.starts(1 + len(self.draft)),
            hidden=None if partial is None else partial.hidden,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """What a pass holds whatever is drafted.

    rows:     committed tokens that it runs: the last one of each decoding sequence, chunks of prompts
    prompt:   of these, the ones of prompts that want no logits
    context:  committed tokens in the caches before it, summed over sequences
    attended: the same summed over rows, and what the rows of a chunk attend to of each other
    """

    rows: int
    prompt: int
    context: int
    attended: int

    @classmethod
    def of(cls, turns: Seq[Turn]) -> Load:
        """Of these turns, before the pass."""
        rows = context = attended = 0
        for turn in turns:
            take, length = turn.take, turn.sequence.cache.length
            rows += take
            context += length
            attended += take * length + take * (take - 1) // 2
        return cls(rows, rows - sum(turn.decides for turn in turns), context, attended)

    @property
    def deciding(self) -> int:
        """Sequences that get tokens from it, each of one row."""
        return self.rows - self.prompt


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, and its wall-clock seconds.

    turns:    those that took part
    decided:  those of them whose pass reached the last committed token
    load:     what the pass held besides drafts
    drafting: seconds by drafter
    passing, other: seconds of the pass, and of all the rest
    """

    turns: Seq[Turn]
    decided: Seq[Turn]
    load: Load
    drafting: Mapping[str, float]
    passing: float
    other: float

    @property
    def rows(self) -> int:
        """Rows of the pass."""
        return sum(turn.rows_taken for turn in self.turns)
