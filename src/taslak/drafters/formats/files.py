"""The tensors of a head's folder: read from whichever kind of file they are in, written as safetensors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taslak.errors import CheckpointError
from taslak.models.loading.huggingface import SINGLE_FILE, stored_tensors
from taslak.models.loading.storage import full_disk_is_an_error, make_folder, write_json

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


def write_checkpoint(
    folder: Path | str,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    file: str = SINGLE_FILE,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """The tensors as they are, bit for bit, and config.json last: with it the folder is a head.

    provenance: kept beside them in a file of its own. Raises DiskError.
    """
    from safetensors.torch import save

    folder = make_folder(Path(folder))
    # clones: a file of safetensors holds no views of one tensor under two names
    whole = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    with full_disk_is_an_error(folder, "a head"):
        partial = folder / f"{file}.{os.getpid()}.partial"
        try:
            # `save_file` would let nobody but this user read it
            partial.write_bytes(save(whole, metadata={"format": "pt"}))
            os.replace(partial, folder / file)
        finally:
            partial.unlink(missing_ok=True)
        if provenance is not None:
            write_json(folder / "provenance.json", dict(provenance))
        write_json(folder / "config.json", dict(config))
