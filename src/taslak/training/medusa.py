"""Medusa heads (Cai et al. 2024): head i says the token i + 2 after the hidden state it reads."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from taslak.drafters.formats import MedusaConfig
from taslak.errors import OptionError
from taslak.models.decoder import FINAL_NORM
from taslak.training.batch import Batch
from taslak.training.kind import Kind, check_config
from taslak.training.teacher import Teacher


class MedusaHead(nn.Module):
    """Residual blocks x + SiLU(Wx + b), and an unembedding where it has its own."""

    def __init__(self, size: int, blocks: int, unembedding: Tensor | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(blocks))
        for parameter in self.blocks.parameters():  # at first each head says what the target would
            nn.init.zeros_(parameter)
        self.unembed = None if unembedding is None else _unembedding(unembedding)

    def forward(self, x: Tensor) -> Tensor:
        """[n, H] -> [n, H]."""
        for block in self.blocks:
            x = x + F.silu(block(x)).float()
        return x


class Medusa(Kind):
    """heads, blocks: how many; unembedding: "own" of each head, "shared" among them, the "target"'s."""

    def __init__(self, teacher: Teacher, heads: int = 4, blocks: int = 1, unembedding: str = "own") -> None:
        super().__init__(teacher)
        self.config = MedusaConfig(heads, blocks, unembedding)
        check_config(self.config, teacher)
        if blocks == 0 and unembedding != "own":
            raise OptionError(
                f"heads without blocks and with unembedding {unembedding!r} would all say the same"
            )
        own = teacher.head if unembedding == "own" else None
        size = teacher.config.hidden_size
        self.heads = nn.ModuleList(MedusaHead(size, blocks, own) for _ in range(heads))
        self.unembed = _unembedding(teacher.head) if unembedding == "shared" else None

    def hidden(self, head: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a head makes of hidden states [n, H]: [n, H], and the unembedding [Vd, H] for it."""
        module = self.heads[head]
        assert isinstance(module, MedusaHead)
        own = module.unembed or self.unembed
        return module(x), self.teacher.head if own is None else own.weight

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        p = self.teacher.distributions(batch)
        steps = range(2, 2 + len(self.heads))
        outputs = []
        for head, ahead in enumerate(steps):
            rows = batch.ahead(ahead)
            outputs.append((rows, *self.hidden(head, batch.features[FINAL_NORM][rows])))
        return self.judged(outputs, steps, batch, p)


def _unembedding(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.clone())
    return linear
