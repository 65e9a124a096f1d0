"""Token-level intersection: a draft of the tokens that two vocabularies spell alike.

A node's children are drawn from what the draft model thinks of these, renormalised: exactly that is q.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from taslak.core.draft import Draft
from taslak.drafters.choice import Children, Chooser, Wish
from taslak.drafters.draft_model import Comb
from taslak.drafters.reader import Reading
from taslak.drafters.vocabularies import Vocabularies


@dataclass(slots=True)
class Shared:
    """Grows such a draft (see reader.Growing).

    most:     children of a node
    chooser:  of the target's ids that both vocabularies have
    ids:      Int64[S] the draft's ids of the same
    """

    reading: Reading
    comb: Comb
    most: int
    words: Vocabularies
    chooser: Chooser
    ids: Tensor

    @property
    def next(self) -> int:
        return self.words.common[self.comb.branch[-1]]

    @property
    def passes(self) -> int:
        """Of the draft model."""
        return max(len(self.comb.branch), 1)

    @property
    def done(self) -> bool:
        comb = self.comb
        # a request may force a token that the draft model doesn't have: nothing is read after it
        return comb.done or (bool(comb.branch) and comb.branch[-1] not in self.words.common)

    def expand(self, logits: Tensor) -> None:
        """See reader.Growing. What the draft model would rather say and can't lowers the confidence."""
        view, comb = self.comb.view, self.comb
        shared = logits[self.ids][None]  # [1, S]
        wish = Wish(view, comb.branch, comb.width(self.most), drawn=not view.sampling.greedy)
        inside = float((shared.logsumexp(-1) - logits.logsumexp(-1)).exp())
        # a row with a NaN anywhere is nothing to choose from
        children = self.chooser.choose(shared, [0], [wish])[0] if inside > 0.0 else Children()
        comb.add(Children(children.tokens, [share * inside for share in children.shares], children.q))

    def draft(self) -> Draft:
        return self.comb.draft()
