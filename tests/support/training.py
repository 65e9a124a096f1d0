"""Training in tests: a tiny target in a folder, what it says, and a store made of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from taslak.training.batch import Batch, collate
from taslak.training.store import Store, Text, fill
from taslak.training.teacher import Teacher
from tests.e2e.conftest import write_model
from tests.support.tiny import tiny_config, tiny_model

CONFIG = tiny_config(vocab_size=259, context=128)
"""What `write_model` writes, with seed 0."""

FEATURES = ("final_norm", "layer.0", "layer.1", "layer.2")


def target_folder(folder: Path) -> Path:
    """The tiny model on disk."""
    return write_model(folder)


def target(*, exact: bool = True):  # type: ignore[no-untyped-def]
    """The same model in memory."""
    return tiny_model(vocab_size=CONFIG.vocab_size, context=CONFIG.context, exact=exact)


def texts(count: int = 6, length: int = 20, prompt: int = 5, held_out: int = 1) -> list[Text]:
    """Random tokens; the last ones are held out. Lengths differ."""
    generator = torch.Generator().manual_seed(3)
    return [
        Text(
            torch.randint(0, 250, (length + 3 * i,), generator=generator).tolist(),
            prompt,
            held_out=i >= count - held_out,
        )
        for i in range(count)
    ]


def make_store(folder: Path, given: list[Text] | None = None) -> Store:
    return fill(folder, target(), texts() if given is None else given, FEATURES, {"model": "tiny"})


def teacher(folder: Path, draft_ids: torch.Tensor | None = None) -> Teacher:
    return Teacher("tiny", folder, CONFIG.vocab_size, draft_ids)


def whole_batch(store: Store) -> Batch:
    return collate(store, range(len(store.prompt_lengths)), torch.device("cpu"))


def write_prompts(path: Path, count: int = 12) -> Path:
    rows = [{"prompt": f"{'abc'[i % 3]} {i}", "category": "test"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
