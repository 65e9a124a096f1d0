"""What all kinds of heads have in common: a module whose forward is its loss, and how it is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taslak.drafters.formats import Drafting, Head, HeadConfig, HeadTarget, write_head
from taslak.errors import OptionError
from taslak.models.decoder import FINAL_NORM
from taslak.training.batch import Batch
from taslak.training.loss import distilled
from taslak.training.teacher import Teacher

SAVED = torch.bfloat16
"""What weights are written in."""

DECAY = 0.8
"""What each further depth counts in the loss (Cai et al. 2024, Medusa; Li et al. 2025, EAGLE-3)."""


class Kind(nn.Module):
    """A head in training. A subclass defines `losses` and `save`; its parameters are what is trained.

    features:  what it reads of the target's passes, the teacher's "final_norm" among them
    config:    what it is, as its file says; None = it is saved in another format
    drafting:  how the head it goes on from drafts
    """

    features: tuple[str, ...] = (FINAL_NORM,)
    config: HeadConfig | None = None
    drafting: Drafting | None = None

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The mean "loss" to be minimised, and of each depth how many "rows" there were and for how many of
        them the head's first choice was "right", the text's token; Int64[depths] both."""
        raise NotImplementedError

    def save(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write what is trained so far, ready to be loaded."""
        write_head(folder, self.head(SAVED), provenance)

    @torch.no_grad()
    def round_as_saved(self) -> None:
        """Take on the numbers that were written, to be compared with what they decode."""
        for parameter in self.parameters():
            parameter.copy_(parameter.to(SAVED))

    @torch.no_grad()
    def go_on(self, head: Head) -> None:
        """Take over a trained head's numbers, and how it drafts. Raises OptionError for one of another kind
        or shape."""
        if head.config != self.config:
            raise OptionError(
                f"the {head.kind} head to go on from is {head.config}; expected {self.config}. Give the "
                "settings it was trained with, or start afresh"
            )
        if odd := sorted(head.tensors.keys() - self.state_dict().keys()):
            raise OptionError(
                f"the head to go on from has a {odd[0]} of its own, which training keeps none of"
            )
        self.load_state_dict({name: tensor.float() for name, tensor in head.tensors.items()})
        self.drafting = head.drafting

    def head(self, dtype: torch.dtype = torch.float32) -> Head:
        """What is trained so far, as the drafters read it."""
        assert self.config is not None
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        t = self.teacher
        target = HeadTarget(t.name, t.config.hidden_size, t.vocab_size, t.config.layers)
        return Head(target, self.config, tensors, t.draft_ids, self.drafting)

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


def check_config(config: HeadConfig, teacher: Teacher) -> None:
    """Raise OptionError for a head that the target can't have."""
    c = teacher.config
    try:
        config.check(HeadTarget(teacher.name, c.hidden_size, teacher.vocab_size, c.layers))
    except ValueError as error:
        raise OptionError(str(error)) from error
