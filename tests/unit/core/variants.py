"""Rejection verification written a second time, with every mistake a switch away.

With no switch set it equals `core.verify.rejection` decision for decision; `test_wrong_variants` checks both
that, and that each mistake is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from taslak.core import verify
from taslak.core.draft import ONE_HOT, ROOT, Draft
from taslak.core.noise import Stream, address
from taslak.core.sampling import Distribution
from taslak.core.verify import Decision, TargetAt


class Wrong(Enum):
    """One mistake each."""

    SIBLINGS_IN_Q_ORDER = auto()
    BASE_Q_WITH_EARLIER_SIBLINGS = auto()
    BASE_Q_NOT_RENORMALISED = auto()
    RESIDUAL_FROM_DRAFT_NOISE = auto()
    ACCEPT_FROM_DRAFT_NOISE = auto()
    ONE_ACCEPT_FOR_ALL_SIBLINGS = auto()
    TOP_P_ON_RESIDUAL = auto()
    RESIDUAL_NOT_RENORMALISED = auto()
    P_INSTEAD_OF_RESIDUAL = auto()
    ACCEPT_ON_EQUAL = auto()
    ACCEPT_AGAINST_P = auto()
    RATIO_UPSIDE_DOWN = auto()
    Q_INSTEAD_OF_P_AT_A_LEAF = auto()
    CHOSEN_TOKENS_ALWAYS_KEPT = auto()


@dataclass(frozen=True)
class Variant:
    """A verifier with one mistake, or none. stepwise: drafts are drawn as the engine's drafters draw them,
    with a key for each step."""

    wrong: Wrong | None = None
    stepwise: bool = False

    def __call__(self, draft: Draft, p_at: TargetAt, key: int, position: int) -> Iterator[Decision]:
        wrong = self.wrong
        residual_stream = Stream.DRAFT if wrong is Wrong.RESIDUAL_FROM_DRAFT_NOISE else Stream.RESIDUAL
        draft_key = address(key, Stream.DRAFT, position) if self.stepwise else key
        residual_key = draft_key if wrong is Wrong.RESIDUAL_FROM_DRAFT_NOISE else key
        accept_key = draft_key if wrong is Wrong.ACCEPT_FROM_DRAFT_NOISE else key
        vocab = 0 if draft.q is None else draft.q.shape[1]
        node = ROOT
        while True:
            law = p_at(node)
            vocab = max(vocab, int(law.ids.max()) + 1)
            p = law.probabilities(vocab)
            r = p
            children = draft.children(node)
            base = self.base(draft, children, vocab)
            if wrong is Wrong.SIBLINGS_IN_Q_ORDER:
                children = sorted(children, key=lambda c: -float(base[draft.tokens[c]]))
            kept = None
            for sibling, child in enumerate(children):
                token = draft.tokens[child]
                q = self.proposal(draft, children, sibling, vocab)
                if self.accepts(
                    float(q[token]), float(r[token]), float(p[token]), token, accept_key, position, sibling
                ):
                    kept = child
                    break
                if wrong is Wrong.CHOSEN_TOKENS_ALWAYS_KEPT and draft.q_row[child] == ONE_HOT:
                    kept = child
                    break
                r = self.remainder(r, q, p)
            if kept is None:
                if not children and node != ROOT and wrong is Wrong.Q_INSTEAD_OF_P_AT_A_LEAF:
                    r = self.base(draft, [node], vocab)
                token = Distribution.of_weights(r).draw(residual_key, residual_stream, position)
                yield Decision(token, None)
                return
            yield Decision(draft.tokens[kept], kept)
            node = kept
            position += 1

    def accepts(
        self, q: float, r: float, p: float, token: int, key: int, position: int, sibling: int
    ) -> bool:
        wrong = self.wrong
        stream, index = Stream.ACCEPT, sibling
        if wrong is Wrong.ACCEPT_FROM_DRAFT_NOISE:
            stream, index = Stream.DRAFT, token
        if wrong is Wrong.ONE_ACCEPT_FOR_ALL_SIBLINGS:
            index = 0
        u = verify.uniform_at(key, stream, position, index)
        if wrong is Wrong.ACCEPT_ON_EQUAL:
            return bool(u * q <= r)
        if wrong is Wrong.ACCEPT_AGAINST_P:
            return bool(u * q < p)
        if wrong is Wrong.RATIO_UPSIDE_DOWN:
            return bool(u * r < q)
        return bool(u * q < r)

    def base(self, draft: Draft, children: list[int], vocab: int) -> Tensor:
        rows = [draft.q_row[c] for c in children if draft.q_row and draft.q_row[c] != ONE_HOT]
        return (
            draft.q[rows[0]].double() if rows and draft.q is not None else torch.full((vocab,), 1.0 / vocab)
        )

    def proposal(self, draft: Draft, children: list[int], sibling: int, vocab: int) -> Tensor:
        child = children[sibling]
        row = draft.q_row[child] if draft.q_row else ONE_HOT
        if row == ONE_HOT or draft.q is None:
            return torch.eye(vocab, dtype=torch.float64)[draft.tokens[child]]
        q = draft.q[row].double().clone()
        if self.wrong is not Wrong.BASE_Q_WITH_EARLIER_SIBLINGS:
            for earlier in children[:sibling]:
                q[draft.tokens[earlier]] = 0.0
        if self.wrong is Wrong.BASE_Q_NOT_RENORMALISED:
            return q
        return q / q.sum() if float(q.sum()) > 0 else q

    def remainder(self, r: Tensor, q: Tensor, p: Tensor) -> Tensor:
        if self.wrong is Wrong.P_INSTEAD_OF_RESIDUAL:
            return p
        rest = (r - q).clamp(min=0.0)
        if float(rest.sum()) == 0.0:
            return p
        if self.wrong is Wrong.RESIDUAL_NOT_RENORMALISED:
            return rest
        rest = rest / rest.sum()
        if self.wrong is Wrong.TOP_P_ON_RESIDUAL:
            order = rest.argsort(descending=True)
            rest[order[rest[order].cumsum(0) - rest[order] >= 0.8]] = 0.0
            rest = rest / rest.sum()
        return rest
