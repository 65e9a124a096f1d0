"""Medusa heads (Cai et al. 2024): head i says the token i + 2 after the hidden state it reads, each by itself."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from taslak.errors import OptionError
from taslak.models.decoder import FINAL_NORM
from taslak.training.batch import Batch
from taslak.training.kind import Kind
from taslak.training.teacher import Teacher

UNEMBEDDINGS = ("own", "shared", "target")


class MedusaHead(nn.Module):
    """Residual blocks x + SiLU(Wx + b), and an unembedding where it has its own."""

    def __init__(self, size: int, blocks: int, unembedding: Tensor | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(blocks))
        for block in self.blocks:  # at first each head repeats the target's own choice
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
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
        if not 1 <= heads <= 16:
            raise OptionError(f"heads is {heads}; expected 1 to 16")
        if blocks < 0:
            raise OptionError(f"blocks is {blocks}; expected at least 0")
        if unembedding not in UNEMBEDDINGS:
            raise OptionError(f"unembedding is {unembedding!r}; expected one of {', '.join(UNEMBEDDINGS)}")
        if blocks == 0 and unembedding != "own":
            raise OptionError(f"heads without blocks and with the unembedding {unembedding!r} would all be alike")
        self.unembedding = unembedding
        own = teacher.head if unembedding == "own" else None
        size = teacher.config.hidden_size
        self.heads = nn.ModuleList(MedusaHead(size, blocks, own) for _ in range(heads))
        self.unembed = _unembedding(teacher.head) if unembedding == "shared" else None

    def hidden(self, head: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a head makes of hidden states [n, H]: [n, H], and the unembedding [Vd, H] for it."""
        module = self.heads[head]
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

    def save(self, folder: Path) -> None:
        from taslak.training.saving import save_head

        fields = {"heads": len(self.heads), "blocks": len(self.heads[0].blocks), "unembedding": self.unembedding}
        save_head(folder, "medusa", self, fields)


def _unembedding(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.clone())
    return linear


