"""Medusa checkpoints as their authors publish them: config.json and `medusa_lm_head.pt` or `.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taslak.drafters.formats.files import read_tensors
from taslak.drafters.formats.head import Head, HeadTarget, MedusaConfig
from taslak.errors import CheckpointError
from taslak.models.loading import check_tensors

MARK = "medusa_num_heads"
"""The key that makes a config.json a Medusa head's."""


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """`values`: its config.json. Raises CheckpointError."""
    tensors = read_tensors(folder)
    blocks = int(values.get("medusa_num_layers", 1))
    numbers = [int(name.split(".")[0]) for name in tensors if name.split(".")[0].isdecimal()]
    # published configs say fewer heads than their files hold
    count = max([int(values[MARK]), *(number + 1 for number in numbers)])
    config = MedusaConfig(heads=count, blocks=blocks)
    first = tensors.get(f"0.{blocks}.weight")
    if first is None or first.dim() != 2:
        raise CheckpointError(f"{folder} has no matrix 0.{blocks}.weight, the first head's unembedding")
    vocab, hidden = first.shape
    names: dict[str, str] = {}
    for i in range(count):
        for j in range(blocks):
            for part in ("weight", "bias"):
                names[f"heads.{i}.blocks.{j}.{part}"] = f"{i}.{j}.linear.{part}"
        names[f"heads.{i}.unembed.weight"] = f"{i}.{blocks}.weight"
    expected = {names[name]: shape for name, shape in config.shapes(hidden, vocab).items()}
    check_tensors(tensors, expected, file=folder)
    target = HeadTarget(str(values.get("base_model_name_or_path", "unknown")), hidden, vocab)
    head = Head(target, config, {name: tensors[theirs] for name, theirs in names.items()})
    head.check(folder)
    return head
