"""Which children a node of a draft gets: from a drafter's logits to tokens, their confidences and their q.

The logits may be of a reduced draft vocabulary. Sampling settings that act on single tokens (penalties,
biases, bans, a constraint) see a full row; all others work on the reduced one, which gives the same and
costs less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taslak.core.sampling import Distribution, Sampling
from taslak.drafters.base import View
from taslak.errors import SamplingError
from taslak.native import available, rank_rows

RIVALS = 16
"""So many of the tokens that the noise prefers share what a child of a draw is thought to be worth; the
others add next to nothing, and all their noise would have to be computed for it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to choose below one node.

    branch:  the draft's tokens down to the node, its own included
    width:   how many children
    drawn:   under rejection: drawn without replacement (else the likeliest, one-hot)
    """

    view: View
    branch: Sequence[int]
    width: int
    drawn: bool


@dataclass(frozen=True, slots=True)
class Children:
    """Tokens in decision order, how likely each is thought to be accepted, and the row they were drawn from
    (Float32[V]; None = one-hot)."""

    tokens: Sequence[int] = ()
    shares: Sequence[float] = ()
    q: Tensor | None = None


class Chooser:
    """Chooses for one target vocabulary.

    vocab_size:  the target's
    ids:         Int64[Vd], the target id of each logit, ascending; None = logit i is id i
    """

    def __init__(self, vocab_size: int, ids: Tensor | None = None) -> None:
        self._vocab_size = vocab_size
        self._ids = ids
        self._known = None if ids is None else ids.tolist()

    def choose(self, logits: Tensor, rows: Sequence[int], wishes: Sequence[Wish]) -> list[Children]:
        """logits: Float32[U, Vd]; rows: [n] each wish's row. A row nothing can be chosen from gives none."""
        chosen: list[Children | None] = [None] * len(wishes)
        settings = [wish.view.sampling for wish in wishes]
        easy = [i for i, sampling in enumerate(settings) if sampling.greedy and _plain(sampling)]
        if easy:
            ranked = _ranked(logits, max(wishes[i].width for i in easy))
            for i in easy:
                best, shares = ranked[rows[i]]
                chosen[i] = Children(self._tokens(best[: wishes[i].width]), shares[: wishes[i].width])
        return [
            self._one(logits[row], wish) if made is None else made
            for made, row, wish in zip(chosen, rows, wishes, strict=True)
        ]

    def _tokens(self, indices: list[int]) -> list[int]:
        return indices if self._known is None else [self._known[i] for i in indices]

    def _one(self, row: Tensor, wish: Wish) -> Children:
        """row: Float32[Vd]."""
        view, sampling = wish.view, wish.view.sampling
        ids = self._ids
        if ids is not None and not _plain(sampling):
            row = row.new_full((self._vocab_size,), -torch.inf).index_put_((ids,), row)
            ids = None
        if sampling.greedy:  # the choices are ranked by what one drawn at temperature 1 would be
            sampling = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        try:
            dist = view.distribution(row, wish.branch, sampling)
            return self._chosen(dist if ids is None else dist.renamed(ids), wish)
        except SamplingError:
            return Children()

    def _chosen(self, dist: Distribution, wish: Wish) -> Children:
        view = wish.view
        if view.sampling.greedy or (view.exact_q and not wish.drawn):
            best = dist.z.topk(min(wish.width, dist.z.numel()))
            shares = (best.values - torch.logsumexp(dist.z, 0)).exp()
            return Children(dist.ids[best.indices].tolist(), shares.tolist())
        noise = view.draft_key, view.stream, view.position + len(wish.branch)
        if view.exact_q:
            dist = dist.storable()
            tokens, _ = dist.top(wish.width, *noise)
            q = dist.probabilities(self._vocab_size).float()  # [V]
            return Children(tokens, q[tokens].tolist(), q)
        # as likely as the target's draw, which shares the noise, is to fall on it: at temperature 0 the
        # probabilities themselves, further up the more of the noise
        tokens, scores = dist.top(max(wish.width, RIVALS), *noise)
        weights = [math.exp((score - scores[0]) * view.sampling.temperature) for score in scores]
        total = sum(weights)
        return Children(tokens[: wish.width], [weight / total for weight in weights[: wish.width]])


def _ranked(logits: Tensor, width: int) -> list[tuple[list[int], list[float]]]:
    """Of each row the likeliest indices and their probabilities; none of a row that can't be drawn from.
    logits: Float32[U, Vd]."""
    if logits.is_cpu and available():
        return rank_rows(logits, width)
    best = logits.topk(min(width, logits.shape[1]))  # [U, width]
    shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_()
    sound = logits.amax(-1).isfinite().tolist()
    lists = zip(best.indices.tolist(), shares.tolist(), sound, strict=True)
    return [(ids, each) if fine else ([], []) for ids, each, fine in lists]


def _plain(sampling: Sampling) -> bool:
    """Whether no setting acts on single tokens."""
    return not (
        sampling.penalised
        or sampling.logit_bias
        or sampling.banned
        or sampling.forced
        or sampling.min_tokens
        or sampling.constraint
    )
