"""How much each sequence drafts in a step, and with what: the engine asks, a policy answers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from taslak.drafters.base import Budget, Drafter
from taslak.engine.sequence import DEEPEST, Sequence
from taslak.engine.turn import Load, Plan, Step
from taslak.errors import OptionError


class Policy(Protocol):
    """How much each sequence may draft, and with what."""

    @property
    def max_nodes(self) -> int:
        """Never more than this many drafted nodes a step and sequence; the cache keeps room for them."""
        ...

    def plans(self, sequences: Seq[Sequence], drafters: Mapping[str, Drafter], load: Load) -> list[Plan]:
        """One plan a sequence. Depths are cut to what the answer may still have. load: what the pass holds
        anyway: a row of each of these sequences or the end of its prompt, and whoever else shares it."""
        ...

    def record(self, step: Step) -> None:
        """Told after every step what it did and what it cost. `step` is only valid during the call."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""
        ...


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """The same depth in every step, `branch` siblings at each; a draft ends early where its joint confidence
    falls under `stop_below`. `nodes`: most of them in a draft, None = γ · branch. Drafters are asked in turn.

    Raises OptionError for γ outside 1 … 16 (DEEPEST), nodes outside 1 … 128 or a confidence outside 0 … 1.
    """

    gamma: int
    branch: int = 1
    stop_below: float = 0.0
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= DEEPEST:
            raise OptionError(f"gamma is {self.gamma}; expected 1 to {DEEPEST}")
        if not 0.0 <= self.stop_below <= 1.0:
            raise OptionError(f"stop_below is {self.stop_below}; expected a confidence from 0 to 1")
        if self.nodes is not None and not 1 <= self.nodes <= 128:
            raise OptionError(f"nodes is {self.nodes}; expected 1 to 128")

    @property
    def max_nodes(self) -> int:
        return self.gamma * self.branch if self.nodes is None else self.nodes

    def plans(self, sequences: Seq[Sequence], drafters: Mapping[str, Drafter], _load: Load) -> list[Plan]:
        plan = dict.fromkeys(drafters, Budget(self.gamma, self.max_nodes, self.stop_below))
        return [plan] * len(sequences)

    def record(self, step: Step) -> None:
        """What is fixed learns nothing."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept."""
