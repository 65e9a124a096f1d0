"""What acceptance means, counted: every metric of the project is defined here and nowhere else.

    drafted        depth of the drafts (longest path each), as far as it was judged
    nodes          drafted tokens, as far as they were judged
    accepted       drafted tokens kept; bonus tokens are not among them
    bonuses        tokens the target added by itself, at most one a pass
    emitted        accepted + bonuses
    passes         verifying passes, those with an empty draft included; prefill-only passes are not
    acceptance rate = accepted / drafted        node rate = accepted / nodes
    α = accepted / passes                       τ = emitted / passes

Nodes after a stop are censored: neither accepted nor rejected, in no count at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from taslak.core.draft import ROOT, Draft


@dataclass(slots=True)
class Counts:
    """Acceptance of one request, or of many added up. Rates are None where nothing was drafted."""

    passes: int = 0
    drafted: int = 0
    nodes: int = 0
    accepted: int = 0
    bonuses: int = 0
    offered_at: list[int] = field(default_factory=list)
    """[depth] passes in which depth − 1 was accepted and something was drafted below it."""
    accepted_at: list[int] = field(default_factory=list)
    """[depth] passes in which a node of this depth was accepted."""

    def record(self, draft: Draft, path: Sequence[int], bonus: bool) -> None:
        """Add one verifying pass. `path`: the accepted nodes, from the root's child on. `bonus` is False
        exactly when a stop fell on the last accepted token; deeper nodes are then censored."""
        judged = draft.depth if bonus else len(path)
        self.passes += 1
        self.drafted += judged
        self.nodes += sum(depth <= judged for depth in draft.depths)
        self.accepted += len(path)
        self.bonuses += bonus
        at = ROOT
        for depth, node in enumerate([*path, None] if bonus else path):
            if node is None and not draft.children(at):
                break
            if depth == len(self.offered_at):
                self.offered_at.append(0)
                self.accepted_at.append(0)
            self.offered_at[depth] += 1
            if node is not None:
                self.accepted_at[depth] += 1
                at = node

    @classmethod
    def total(cls, every: Iterable[Counts]) -> Counts:
        """All added up, in a new object."""
        counts = cls()
        for each in every:
            counts.add(each)
        return counts

    def add(self, other: Counts) -> None:
        """Add another request's counts."""
        self.passes += other.passes
        self.drafted += other.drafted
        self.nodes += other.nodes
        self.accepted += other.accepted
        self.bonuses += other.bonuses
        longer = len(other.offered_at) - len(self.offered_at)
        self.offered_at += [0] * longer
        self.accepted_at += [0] * longer
        for depth, (offered, accepted) in enumerate(zip(other.offered_at, other.accepted_at, strict=True)):
            self.offered_at[depth] += offered
            self.accepted_at[depth] += accepted

    @property
    def emitted(self) -> int:
        """Tokens of the answer."""
        return self.accepted + self.bonuses

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted depth."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def node_rate(self) -> float | None:
        """accepted / drafted nodes; differs from the acceptance rate for trees only."""
        return self.accepted / self.nodes if self.nodes else None

    @property
    def alpha(self) -> float | None:
        """Mean accepted tokens a pass."""
        return self.accepted / self.passes if self.passes else None

    @property
    def tau(self) -> float | None:
        """Mean emitted tokens a pass."""
        return self.emitted / self.passes if self.passes else None

    @property
    def theoretical_speedup(self) -> float | None:
        """1 + α: the speed-up if a verifying pass cost as much as a plain one and drafting nothing."""
        return None if self.alpha is None else 1.0 + self.alpha

    @property
    def hazards(self) -> list[float]:
        """a_d for d = 1, 2, …: P(depth d accepted | depth d − 1 accepted and depth d drafted)."""
        return [a / o for a, o in zip(self.accepted_at, self.offered_at, strict=True)]
