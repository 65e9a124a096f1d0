"""Which children a node of a draft gets: from a head's logits to tokens, their confidences and their q.

The logits may be of a reduced draft vocabulary. Sampling settings that act on single tokens (penalties,
biases, bans) see a full row; all others work on the reduced one, which gives the same and costs less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taslak.core.noise import address, gumbel
from taslak.core.sampling import Distribution, Sampling, distribution
from taslak.drafters.base import View
from taslak.errors import SamplingError
from taslak.native import available, draw_scored, rank_rows

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
        if not (sampling.greedy or view.exact_q) and _plain(sampling) and not sampling.cut and _native(row):
            return self._drawn(row, wish)
        ids = self._ids
        if ids is not None and not _plain(sampling):
            row = row.new_full((self._vocab_size,), -torch.inf).index_put_((ids,), row)
            ids = None
        if sampling.greedy:  # the choices are ranked by what one drawn at temperature 1 would be
            sampling = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        try:
            dist = distribution(row, view.tokens, wish.branch, view.prompt_length, sampling)
        except SamplingError:
            return Children()
        if ids is not None:
            dist = Distribution(ids[dist.ids], dist.z)
        if view.sampling.greedy or (view.exact_q and not wish.drawn):
            return _best(dist.ids, dist.z, wish.width)
        position = view.position + len(wish.branch)
        if not view.exact_q:
            # as likely as the target's draw, which shares the noise, is to fall on it: at temperature 0 the
            # probabilities themselves, further up the more of the noise
            noisy = dist.z + gumbel(view.key, view.stream, position, dist.ids)
            best = noisy.topk(min(max(wish.width, RIVALS), noisy.numel()))
            return _best(dist.ids[best.indices], best.values, wish.width, sampling.temperature)
        dist = dist.storable()
        tokens = dist.top(wish.width, view.key, view.stream, position)
        q = dist.probabilities(self._vocab_size).float()  # [V]
        return Children(tokens, q[tokens].tolist(), q)

    def _drawn(self, row: Tensor, wish: Wish) -> Children:
        """As the last lines of `_one`, in one look at the row: what the noise prefers, coupled."""
        view, temperature = wish.view, wish.view.sampling.temperature
        state = address(view.key, view.stream, view.position + len(wish.branch))
        try:
            ids, scores = draw_scored(row, temperature, state, max(wish.width, RIVALS), self._ids)
        except ValueError:  # nothing can be drawn from it
            return Children()
        weights = [math.exp((score - scores[0]) * temperature) for score in scores]
        total = sum(weights)
        return Children(ids[: wish.width], [weight / total for weight in weights[: wish.width]])


def _ranked(logits: Tensor, width: int) -> list[tuple[list[int], list[float]]]:
    """Of each row the likeliest indices and their probabilities; none of a row that can't be drawn from.
    logits: Float32[U, Vd]."""
    if _native(logits):
        return rank_rows(logits, width)
    best = logits.topk(min(width, logits.shape[1]))  # [U, width]
    shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_()
    sound = logits.amax(-1).isfinite().tolist()
    lists = zip(best.indices.tolist(), shares.tolist(), sound, strict=True)
    return [(ids, each) if fine else ([], []) for ids, each, fine in lists]


def _native(logits: Tensor) -> bool:
    """Whether the kernels can serve these rows."""
    return logits.device.type == "cpu" and available()


def _plain(sampling: Sampling) -> bool:
    """Whether no setting acts on single tokens."""
    return not (
        sampling.penalised or sampling.logit_bias or sampling.banned or sampling.forced or sampling.min_tokens
    )


def _best(ids: Tensor, scores: Tensor, width: int, scale: float = 1.0) -> Children:
    """The largest scores, their softmax (of scores · scale) as shares. ids: Int64[S]; scores: Float64[S]."""
    best = scores.topk(min(width, scores.numel()))
    shares = (best.values * scale - torch.logsumexp(scores * scale, 0)).exp()
    return Children(ids[best.indices].tolist(), shares.tolist())
