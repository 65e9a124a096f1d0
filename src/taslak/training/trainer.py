"""The one training loop: AdamW, warm-up and cosine, clipped gradients, checkpoints that survive a kill."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taslak.errors import CheckpointError, OptionError
from taslak.models.loading import Progress
from taslak.models.loading.storage import close_durably
from taslak.training.batch import Batch, collate, packed
from taslak.training.kind import Kind
from taslak.training.store import Store
from taslak.training.world import World

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast.

    epochs:         passes over the texts
    batch_tokens:   rows of a step (of each process)
    learning_rate:  AdamW's highest, reached after `warm_up` of all steps, then falling by a cosine to a tenth
    clip:           most the gradient's norm may be
    precision:      what products run in; None = bfloat16 where the machine multiplies it faster (AMX, CUDA)
    save_every:     steps between checkpoints
    """

    epochs: int = 3
    batch_tokens: int = 2048
    learning_rate: float = 1e-3
    warm_up: float = 0.05
    clip: float = 1.0
    weight_decay: float = 0.01
    seed: int = 0
    precision: str | None = None
    save_every: int = 50

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise OptionError(f"epochs is {self.epochs}; expected at least 1")
        if self.batch_tokens < 16:
            raise OptionError(f"batch_tokens is {self.batch_tokens}; expected at least 16")
        if not 0 < self.learning_rate < 1:
            raise OptionError(f"learning_rate is {self.learning_rate}; expected more than 0 and less than 1")
        if self.precision not in (None, *PRECISIONS):
            raise OptionError(f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = max(round(self.warm_up * steps), 1)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        fall = 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))
        return self.learning_rate * (0.1 + 0.9 * fall)


@dataclass(slots=True)
class Point:
    """One point of the curves: the mean loss and the accuracies by depth since the point before, or over the
    held-out texts."""

    step: int
    loss: float
    accuracy: list[float]
    held_out: bool = False


@dataclass(slots=True)
class _Sums:
    loss: float = 0.0
    steps: int = 0
    right: Tensor | None = None
    rows: Tensor | None = None

    def add(self, losses: dict[str, Tensor]) -> None:
        self.loss += float(losses["loss"].detach())
        self.steps += 1
        self.right = losses["right"] if self.right is None else self.right + losses["right"]
        self.rows = losses["rows"] if self.rows is None else self.rows + losses["rows"]

    def point(self, step: int, held_out: bool) -> Point:
        assert self.right is not None
        assert self.rows is not None
        accuracy = (self.right / self.rows.clamp(min=1)).tolist()
        return Point(step, self.loss / self.steps, [round(a, 5) for a in accuracy], held_out)


@dataclass
class Trainer:
    """Trains `kind` on the texts of `store` that are not held out.

    checkpoint:  the file that weights, optimiser, step and curves are kept in
    identity:    settings a checkpoint must have been made with to be gone on from
    """

    kind: Kind
    store: Store
    schedule: Schedule
    world: World
    checkpoint: Path
    identity: dict[str, Any] = field(default_factory=dict)
    curves: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.schedule
        batches = [
            batch
            for epoch in range(s.epochs)
            for batch in packed(self.store, self.store.trained, s.batch_tokens, s.seed + epoch)
        ]
        # the processes go in step; what does not fill a last round of all of them goes round again
        short = -len(batches) % self.world.size
        self._plan = batches + batches[:short]
        self.steps = len(self._plan) // self.world.size
        self._parameters = [p for p in self.kind.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=s.learning_rate, betas=(0.9, 0.95), weight_decay=s.weight_decay
        )
        self._autocast = autocast(self.world.device, s.precision)

    def run(self, progress: Progress | None = None) -> None:
        """From the checkpoint, where there is one, to the end."""
        torch.manual_seed(self.schedule.seed)
        step = self._resume()
        module: nn.Module = self.kind
        if self.world.size > 1:
            module = DistributedDataParallel(self.kind, broadcast_buffers=False)
        every = max(self.steps // 50, 1)
        sums = _Sums()
        while step < self.steps:
            if progress is not None:
                progress("training", step, self.steps)
            sums.add(self._step(module, step))
            step += 1
            if step % every == 0 or step == self.steps:
                self.curves.append(sums.point(step, held_out=False))
                sums = _Sums()
            if step % (every * 10) == 0 or step == self.steps:
                self.curves.append(self.held_out(step))
            if (step % self.schedule.save_every == 0 or step == self.steps) and self.world.first:
                self._save(step)
        if progress is not None:
            progress("training", self.steps, self.steps)
        self.world.wait()

    def held_out(self, step: int, texts: Sequence[int] | None = None) -> Point:
        """The losses over the held-out texts, or some of them."""
        sums = _Sums()
        with torch.no_grad():
            for batch in packed(
                self.store, self.store.held_out if texts is None else texts, self.schedule.batch_tokens, None
            ):
                with self._autocast:
                    sums.add(self.kind(self._batch(batch)))
        return sums.point(step, held_out=True)

    def _step(self, module: nn.Module, step: int) -> dict[str, Tensor]:
        batch = self._batch(self._plan[step * self.world.size + self.world.rank])
        with self._autocast:
            losses: dict[str, Tensor] = module(batch)
        self._optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.schedule.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self.schedule.rate(step, self.steps)
        if torch.isfinite(norm):  # one broken batch must not cost the head
            self._optimizer.step()
        return losses

    def _batch(self, texts: Sequence[int]) -> Batch:
        return collate(self.store, texts, self.world.device)

    def _save(self, step: int) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save(
                {
                    "identity": self.identity,
                    "step": step,
                    "head": self.kind.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "random": torch.get_rng_state(),
                    "curves": [asdict(point) for point in self.curves],
                },
                file,
            )
            close_durably(file)
        os.replace(partial, self.checkpoint)

    def _resume(self) -> int:
        """The step to go on with. Raises OptionError for a checkpoint made with other settings."""
        if not self.checkpoint.is_file():
            return 0
        try:
            saved = torch.load(self.checkpoint, map_location=self.world.device, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{self.checkpoint} can't be read: {error}; remove it to start afresh"
            ) from error
        different = [k for k in self.identity if saved["identity"].get(k) != self.identity[k]]
        if different:
            raise OptionError(
                f"{self.checkpoint} was made with another {', '.join(different)}; give the same to go on, "
                "or remove it to start afresh"
            )
        self.kind.load_state_dict(saved["head"])
        self._optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"].cpu())
        self.curves = [Point(**point) for point in saved["curves"]]
        return int(saved["step"])


def autocast(device: torch.device, precision: str | None) -> AbstractContextManager[Any]:
    """The context that products run in."""
    if precision is None:
        precision = "bfloat16" if device.type == "cuda" or _has_tiles() else "float32"
    return torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "float32")


def _has_tiles() -> bool:
    """Whether the processor multiplies bfloat16 matrices in hardware; without, it is several times slower
    than float32."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(found.get("amx_bf16"))
