"""One process or several under `torchrun`: who this one is, and waiting for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(days=7)
"""How long the others wait while the first one answers prompts."""


@dataclass(frozen=True, slots=True)
class World:
    """rank of size; device: where this one computes."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def world(device: str) -> Iterator[World]:
    """What `torchrun` says this process is, or the only one. device: "cpu", or "cuda" (each its own GPU)."""
    size, rank = (int(os.environ.get(name, "0")) for name in ("WORLD_SIZE", "RANK"))
    if size <= 1:
        yield World(0, 1, torch.device(device))
        return
    where = torch.device(device)
    if where.type == "cuda":
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(rank, size, where)
    finally:
        dist.destroy_process_group()
