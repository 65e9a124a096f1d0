"""EAGLE heads: one transformer layer that continues the target's hidden states, fed with its own output.

EAGLE-1 and -2 (Li et al. 2024) read the last hidden state and learn to say the next one; EAGLE-3 (Li et al.
2025) reads three layers and is free in what it hands on. Row t pairs the hidden state at token t with token
t + 1 and says token t + 2.

Both are trained in rounds (training-time test): round k reads what round k − 1 gave one row before, as the
k-th drafted token will.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taslak.drafters.formats import Eagle3Config, EagleConfig, LayerConfig
from taslak.errors import OptionError
from taslak.models.decoder import FINAL_NORM, layer_feature
from taslak.training.batch import Batch, Tail
from taslak.training.kind import DECAY, Kind, check_config
from taslak.training.layers import Layer, Norm, set_weight
from taslak.training.teacher import Teacher

STD = 0.02
"""Of the weights at the start."""

AHEAD = 2
"""Row t says the token this far after it."""


class Rounds(Kind):
    """A head fed with its own output. ttt: rounds, the drafted depths it is trained for; inner_size: of its
    layer's MLP, None = the target's."""

    feature_weight = 0.0
    layer: Layer

    def __init__(self, teacher: Teacher, ttt: int, inner_size: int | None = None) -> None:
        super().__init__(teacher)
        if not 1 <= ttt <= 8:
            raise OptionError(f"ttt is {ttt}; expected 1 to 8")
        if inner_size is not None and inner_size < 1:
            raise OptionError(f"inner_size is {inner_size}; expected 1 or more")
        self.rounds = ttt
        self.shape = teacher.layer if inner_size is None else replace(teacher.layer, inner_size=inner_size)

    @abstractmethod
    def start(self, batch: Batch) -> Tensor:
        """What the first round reads at each row. -> [T, H]."""

    @abstractmethod
    def read(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """embedded: of the next tokens, [n, H]; hidden: [n, H]. -> what attention reads, and the residual."""

    @abstractmethod
    def unembedded(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the logits are made of: hidden states [n, H] and the unembedding [Vd, H]."""

    def run(self, batch: Batch, tail: Tail) -> list[Tensor]:
        """What each round hands on, [n, H] each, of the rows of `tail`. Others are read only as the target
        made them: what a prompt's rows give is nobody's input."""
        embedded = F.embedding(batch.tokens.roll(-1), self.teacher.embedding)
        turn = self.teacher.rope.at(batch.positions)
        x, residual = self.read(embedded, self.start(batch))
        past = [self.layer.key_value(x, turn)]
        embedded, x, residual = embedded[tail.rows], x[tail.rows], residual[tail.rows]
        turn = turn[0][tail.rows], turn[1][tail.rows]
        outputs: list[Tensor] = []
        for number in range(self.rounds):
            if number:
                x, residual = self.read(embedded, outputs[-1].roll(1, dims=0))
                past.append(self.layer.key_value(x, turn))
            outputs.append(self.layer(x, residual, turn, tail.spans, past))
        return outputs

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        p = self.teacher.distributions(batch)
        ahead = batch.ahead(AHEAD)
        # the last round's first row with a loss read what each round before it gave one row earlier
        tail = batch.tail(AHEAD + self.rounds - 1)
        judged = []
        features = torch.zeros((), device=batch.device)
        for number, output in enumerate(self.run(batch, tail)):
            rows = ahead[batch.positions[ahead] >= number]  # a row this far back is in the same text
            own = output[torch.searchsorted(tail.rows, rows)]
            judged.append((rows, *self.unembedded(own)))
            if self.feature_weight and rows.numel():
                truth = batch.features[FINAL_NORM][rows + 1]
                features = features + DECAY**number * F.smooth_l1_loss(own, truth)
        losses = self.judged(judged, [AHEAD] * len(judged), batch, p)
        return {**losses, "loss": losses["loss"] + self.feature_weight * features}


class Eagle(Rounds):
    """EAGLE-1 / EAGLE-2. feature_weight: what the distance to the target's next hidden state counts."""

    def __init__(
        self, teacher: Teacher, ttt: int = 3, feature_weight: float = 0.1, inner_size: int | None = None
    ) -> None:
        super().__init__(teacher, ttt, inner_size)
        self.feature_weight = feature_weight
        self.config = EagleConfig(self.shape)
        size = teacher.config.hidden_size
        self.fc = nn.Linear(2 * size, size)
        self.layer = Layer(self.shape, size)
        # at first the hidden state goes through as it is; the target's last layer as a start is far worse,
        # since what it reads is normed and scaled otherwise
        start_as_nothing(self.layer)
        with torch.no_grad():
            self.fc.weight.normal_(std=STD)
            self.fc.weight[:, size:] += torch.eye(size)
            self.fc.bias.zero_()

    def start(self, batch: Batch) -> Tensor:
        return batch.features[FINAL_NORM]

    def read(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fc(torch.cat((embedded, hidden), dim=-1)).float()
        return x, x

    def unembedded(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, self.teacher.head


class Eagle3Layer(Layer):
    """A layer whose attention reads the next token and the hidden state side by side, normed each."""

    def __init__(self, config: LayerConfig, hidden: int) -> None:
        super().__init__(config, hidden, width=2 * hidden, input_norm=True)
        self.hidden_norm = Norm(hidden, config.norm_eps)

    def both(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """[T, H], [T, H] -> [T, 2 H]."""
        assert self.input_norm is not None
        return torch.cat((self.input_norm(embedded), self.hidden_norm(hidden)), dim=-1)


class Eagle3(Rounds):
    """EAGLE-3. captures: the three layers (numbered from 0, low to high) whose outputs it reads."""

    def __init__(
        self,
        teacher: Teacher,
        ttt: int = 3,
        captures: Sequence[int] | None = None,
        inner_size: int | None = None,
    ) -> None:
        super().__init__(teacher, ttt, inner_size)
        c = teacher.config
        # the output of layer i is what others call hidden_states[i + 1]; theirs are [2], [n // 2] and [n - 3]
        self.captures = tuple(captures or (1, c.layers // 2 - 1, c.layers - 4))
        self.config = Eagle3Config(self.shape, self.captures)
        check_config(self.config, teacher)
        self.features = (FINAL_NORM, *map(layer_feature, self.captures))
        size = c.hidden_size
        self.fc = nn.Linear(3 * size, size, bias=False)
        self.layer = Eagle3Layer(self.shape, size)
        start_as_nothing(self.layer)
        self.norm = Norm(size, c.norm_eps)
        self.lm_head = nn.Linear(size, teacher.draft_vocab_size, bias=False)
        set_weight(self.norm, teacher.weight("model.norm.weight"))
        set_weight(self.lm_head, teacher.head)

    def start(self, batch: Batch) -> Tensor:
        three = torch.cat([batch.features[layer_feature(layer)] for layer in self.captures], dim=-1)
        fused: Tensor = self.fc(three)
        return fused.float()

    def read(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.layer, Eagle3Layer)
        return self.layer.both(embedded, hidden), hidden

    def unembedded(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(hidden), self.lm_head.weight


def start_as_nothing(layer: Layer) -> None:
    """Random weights, with what is added to the residual at zero."""
    for parameter in layer.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=STD)
    nn.init.zeros_(layer.o.weight)
    nn.init.zeros_(layer.down.weight)
