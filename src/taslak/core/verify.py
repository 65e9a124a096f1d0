"""Verification: which drafted tokens are kept, and which token the target adds.

Both rules are lossless: the answer is distributed exactly as the target's own. They are written as
generators of decisions, so that the caller can stop at an end of text and no row after it is ever looked at.
Nothing lossy belongs in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from taslak.core.draft import ONE_HOT, ROOT, Draft
from taslak.core.noise import Stream, uniform_at
from taslak.core.sampling import Distribution

TargetAt = Callable[[int], Distribution]
"""Node (or ROOT) -> the target's distribution of the token after it. Called for visited nodes only."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One token of the answer; `node` is the draft node it was accepted from, None for the bonus."""

    token: int
    node: int | None


Verifier = Callable[[Draft, TargetAt, int, int], Iterator[Decision]]
"""(draft, target distribution by node, noise key, position of the first drafted token) -> decisions."""


def coupled(draft: Draft, p_at: TargetAt, key: int, position: int) -> Iterator[Decision]:
    """Draw the target's own tokens, one after the other, for as long as the draft holds them.

    Every token is `draw(p, position)` and nothing else: no choice depends on the draft, so the text is the
    same with any draft or none. Cf. Gumbel-coupled speculative sampling (Daliri et al. 2025).
    """
    node = ROOT
    while True:
        token = p_at(node).draw(key, Stream.TOKEN, position)
        child = next((c for c in draft.children(node) if draft.tokens[c] == token), None)
        yield Decision(token, child)
        if child is None:
            return
        node = child
        position += 1


def rejection(draft: Draft, p_at: TargetAt, key: int, position: int) -> Iterator[Decision]:
    """Speculative sampling by rejection (Leviathan et al. 2023, Chen et al. 2023), recursive on siblings
    (SpecInfer, Miao et al. 2024; Sequoia, Chen et al. 2024).

    `draft.check` must have passed: an impossible q found half-way could no longer be taken back.
    """
    node = ROOT
    while True:
        p = p_at(node)
        accepted: int | None = None
        children = draft.children(node)
        if not children:  # r = p, on its sparse support
            yield Decision(p.draw(key, Stream.RESIDUAL, position), None)
            return
        full = p.probabilities(_width(draft, p))  # [V]
        residual = full
        for sibling, child in enumerate(children):
            token = draft.tokens[child]
            q = _proposal(draft, children, sibling, like=full)
            u = uniform_at(key, Stream.ACCEPT, position, sibling)
            if u * float(q[token]) < float(residual[token]):
                accepted = child
                break
            residual = _remainder(residual, q, full)
        if accepted is None:
            token = Distribution.of_weights(residual).draw(key, Stream.RESIDUAL, position)
            yield Decision(token, None)
            return
        yield Decision(draft.tokens[accepted], accepted)
        node = accepted
        position += 1


VERIFIERS: dict[str, Verifier] = {"coupled": coupled, "rejection": rejection}


def _width(draft: Draft, p: Distribution) -> int:
    """A vocabulary wide enough for both sides; ids past it have probability zero on both."""
    if draft.q is not None:
        return draft.q.shape[1]
    return max(int(p.ids[-1]), *draft.tokens) + 1


def _proposal(draft: Draft, children: list[int], sibling: int, like: Tensor) -> Tensor:
    """Float64[V]: exactly what the sibling was drawn from, given that the earlier ones were drawn first."""
    child = children[sibling]
    row = draft.q_row[child] if draft.q_row else ONE_HOT
    if row == ONE_HOT or draft.q is None:
        q = torch.zeros_like(like)
        q[draft.tokens[child]] = 1.0
        return q
    q = draft.q[row].to(dtype=like.dtype, device=like.device, copy=True)  # [V]
    q[[draft.tokens[earlier] for earlier in children[:sibling]]] = 0.0
    return q / q.sum()


def _remainder(residual: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """max(r − q, 0) renormalised; p where rounding left nothing. All Float64[V]."""
    rest = (residual - q).clamp_(min=0.0)
    total = float(rest.sum())
    return rest / total if total > 0.0 else p
