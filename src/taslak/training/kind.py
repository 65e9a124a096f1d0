"""What all kinds of heads have in common: a module whose forward is its loss, and how it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from taslak.models.decoder import FINAL_NORM
from taslak.training.batch import Batch
from taslak.training.layers import LayerShape
from taslak.training.loss import distilled
from taslak.training.teacher import Teacher

DECAY = 0.8
"""What each further depth counts in the loss (Cai et al. 2024, Medusa; Li et al. 2025, EAGLE-3)."""


class Kind(nn.Module):
    """A head in training. A subclass defines `losses` and `save`; its parameters are what is trained.

    features:  what it reads of the target's passes, the teacher's "final_norm" among them
    """

    features: tuple[str, ...] = (FINAL_NORM,)

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """"loss": the mean to be minimised; "right" and "rows": Int64[depths], how many rows there were at each
        depth and for how many of them the head's first choice is the text's token."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write what is trained so far, ready to be loaded."""
        raise NotImplementedError

    def judged(
        self, outputs: Sequence[tuple[Tensor, Tensor, Tensor]], steps: Sequence[int], batch: Batch, p: Tensor
    ) -> dict[str, Tensor]:
        """The losses of the depths, the deeper counting less.

        outputs:  for each depth: rows Int64[n], hidden states Float[n, H], unembedding Float[Vd, H]
        steps:    for each depth, how many tokens after its row the predicted one stands
        p:        the teacher's distributions after each row, Float[T, Vd]
        """
        total = torch.zeros((), device=batch.device)
        right, rows = [], []
        weights = [DECAY**depth for depth in range(len(outputs))]
        for (at, hidden, unembedding), ahead, weight in zip(outputs, steps, weights, strict=True):
            place = self.teacher.places(batch.tokens[at + ahead])
            # where the text goes on outside the draft vocabulary there is nothing to learn: the drafter
            # can't say it, and what the target gives the other tokens there hardly matters
            share = (place >= 0).float()
            loss, best = distilled(hidden, unembedding, p[at + ahead - 1], share / share.sum().clamp(min=1))
            total = total + weight / sum(weights) * loss
            right.append((best == place).sum())
            rows.append(torch.tensor(at.numel(), device=batch.device))
        return {"loss": total, "right": torch.stack(right), "rows": torch.stack(rows)}


def layer_shape(teacher: Teacher, *, width: int | None = None, input_norm: bool = False) -> LayerShape:
    """A layer of the target's sizes, without biases."""
    c = teacher.config
    return LayerShape(
        hidden_size=c.hidden_size,
        inner_size=c.inner_size,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_size=c.head_size,
        norm_eps=c.norm_eps,
        width=width,
        input_norm=input_norm,
    )
