"""What an answer may say: which tokens may come next, as a function of the answer so far.

A `Constraint` is shared by all answers it holds for and has no state. A `Matcher` stands somewhere in one
answer, so that the next question costs little; what it says depends on the tokens it is asked about alone.
Knows nothing about grammars or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """What may come after some tokens of an answer.

    tokens:  Bool[V], those the answer may go on with; not to be modified
    end:     whether it may end instead
    """

    tokens: Tensor
    end: bool

    @property
    def complete(self) -> bool:
        """Whether the end is all that may come."""
        return self.end and not bool(self.tokens.any())

    def mask(self, eos: Sequence[int]) -> Tensor:
        """Bool[V]: `tokens`, and the ids that end an answer exactly where it may end."""
        if not eos:
            return self.tokens
        mask = self.tokens.clone()
        mask[list(eos)] = self.end
        return mask


class Matcher(Protocol):
    """Follows one answer, and the branches of its drafts."""

    def allowed(self, answer: Sequence[int]) -> Allowed:
        """What may come after these tokens, none of which ends the answer. Nothing, not even the end, where
        they are against the constraint. Raises SamplingError where it can't be told."""
        ...

    def admits(self, answer: Sequence[int]) -> bool:
        """Whether these tokens, none of which ends the answer, keep to the constraint; cheaper to ask."""
        ...


class Constraint(Protocol):
    """One for all answers that it holds for."""

    def matcher(self) -> Matcher:
        """A new one, for one answer."""
        ...
