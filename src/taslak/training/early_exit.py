"""Early exit: the target's first layers draft, through a norm (and a low-rank adapter) of their own.

Zhang et al. 2024, "Draft & Verify"; Elhoushi et al. 2024, "LayerSkip". The layers stay as they are.
"""

from __future__ import annotations

from torch import Tensor, nn

from taslak.drafters.formats import ExitConfig
from taslak.errors import OptionError
from taslak.models.decoder import FINAL_NORM, layer_feature
from taslak.training.batch import Batch
from taslak.training.kind import Kind, check_config
from taslak.training.layers import Norm, set_weight
from taslak.training.teacher import Teacher


class Adapter(nn.Module):
    """A low-rank addition, nothing at first. [n, H] -> [n, H]."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(size, rank, bias=False)
        self.up = nn.Linear(rank, size, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x))
        return x + added.float()


class EarlyExit(Kind):
    """exit_layer: how many layers draft; rank: of the adapter, 0 = none."""

    def __init__(self, teacher: Teacher, exit_layer: int | None = None, rank: int = 64) -> None:
        super().__init__(teacher)
        c = teacher.config
        if c.norm != "rms":
            raise OptionError(f"{teacher.name} ends in a LayerNorm; an exit is trained for RMSNorm alone")
        self.exit_layer = max(c.layers // 4, 1) if exit_layer is None else exit_layer
        self.config = ExitConfig(self.exit_layer, rank)
        check_config(self.config, teacher)
        if rank > c.hidden_size:
            raise OptionError(f"rank is {rank}; expected 0 to the hidden size {c.hidden_size}")
        self.features = (FINAL_NORM, layer_feature(self.exit_layer - 1))
        self.adapter = Adapter(c.hidden_size, rank) if rank else None
        self.norm = Norm(c.hidden_size, c.norm_eps)
        set_weight(self.norm, teacher.weight("model.norm.weight"))

    def hidden(self, x: Tensor) -> Tensor:
        """From the exit layer's output to what the lm_head reads. [n, H] -> [n, H]."""
        normed: Tensor = self.norm(x if self.adapter is None else self.adapter(x))
        return normed

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        p = self.teacher.distributions(batch)
        rows = batch.ahead(1)
        hidden = self.hidden(batch.features[layer_feature(self.exit_layer - 1)][rows])
        return self.judged([(rows, hidden, self.teacher.head)], [1], batch, p)
