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

from taslak.core.noise import gumbel
from taslak.core.sampling import Distribution, Sampling, distribution
from taslak.drafters.base import View
from taslak.errors import SamplingError


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

    def choose(self, logits: Tensor, rows: Sequence[int], wishes: Sequence[Wish]) -> list[Children]:
        """logits: Float32[U, Vd]; rows: [n] each wish's row. A row nothing can be chosen from gives none."""
        chosen: list[Children | None] = [None] * len(wishes)
        settings = [wish.view.sampling for wish in wishes]
        easy = [i for i, sampling in enumerate(settings) if sampling.greedy and _plain(sampling)]
        if easy:
            width = min(max(wishes[i].width for i in easy), logits.shape[1])
            best = logits.topk(width)  # [U, width]
            shares = (best.values - logits.logsumexp(-1, keepdim=True)).exp_().tolist()
            ids = (best.indices if self._ids is None else self._ids[best.indices]).tolist()
            for i in easy:
                n, row = wishes[i].width, rows[i]
                if math.isfinite(shares[row][0]):
                    chosen[i] = Children(ids[row][:n], shares[row][:n])
                else:
                    chosen[i] = Children()
        return [
            self._one(logits[row], wish) if made is None else made
            for made, row, wish in zip(chosen, rows, wishes, strict=True)
        ]

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
            return _best(dist.ids, noisy, wish.width, sampling.temperature)
        dist = dist.storable()
        tokens = dist.top(wish.width, view.key, view.stream, position)
        q = dist.probabilities(self._vocab_size).float()  # [V]
        return Children(tokens, q[tokens].tolist(), q)


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
