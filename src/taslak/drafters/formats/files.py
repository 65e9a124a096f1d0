"""The tensors of a head's folder, whichever kind of file they are in."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor

from taslak.errors import CheckpointError
from taslak.models.loading.huggingface import stored_tensors

PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt")
"""Read with `weights_only`: tensors and nothing that runs."""


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder: its safetensors, else one of the pickled files. Raises CheckpointError."""
    pickled = [folder / name for name in PICKLED if (folder / name).is_file()]
    if not pickled or any(folder.glob("*.safetensors")):
        return dict(stored_tensors(folder))
    file = pickled[0]
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file} can't be read as a file of tensors alone: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CheckpointError(f"{file} holds more than named tensors")
    return tensors
