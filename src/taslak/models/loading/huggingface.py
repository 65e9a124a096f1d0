"""Checkpoint folders in the Hugging Face layout: which weight files there are, and their tensors.

Knows nothing about what the tensors mean: a model says which names and shapes it expects.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taslak.errors import CheckpointError

if TYPE_CHECKING:  # torch is imported with the first tensor, so that listing packs stays quick
    import torch
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# A number in these formats means nothing without the scales that go with it.
UNSUPPORTED_STORAGE = ("F8_", "F4", "F6_")


def check_folder(folder: Path) -> None:
    """Raises CheckpointError unless `folder` has a config, a tokenizer and all its weight files."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json: expected a folder in the Hugging Face layout "
            "(config.json, *.safetensors, tokenizer.json); for a GGUF model, give the .gguf file itself"
        )
    weight_files(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(f"{folder} has no tokenizer: expected tokenizer.json beside config.json")


def weight_files(folder: Path) -> dict[Path, list[str] | None]:
    """The safetensors files of a folder, each with the tensors the index expects in it (None: no index).

    Raises CheckpointError for no weight file at all, a missing shard, or an index that can't be read.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return _indexed_files(folder, index)
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: None}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise CheckpointError(
            f"{folder} has {len(found)} safetensors files but no {INDEX_FILE} to say what is where"
        )
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    hint = f" (found {others[0]}: only safetensors is read, for safety; convert it first)" if others else ""
    raise CheckpointError(
        f"{folder} has no weights: expected {SINGLE_FILE} or {INDEX_FILE} with its shards{hint}"
    )


def _indexed_files(folder: Path, index: Path) -> dict[Path, list[str] | None]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards: dict[Path, list[str] | None] = {
            folder / name: [] for name in sorted(set(weight_map.values()))
        }
        for tensor, name in weight_map.items():
            names = shards[folder / name]
            assert names is not None
            names.append(tensor)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f'{index} is not a weight index: expected JSON with a "weight_map" of names'
        ) from error
    for path, names in shards.items():
        if path.parent != folder:
            raise CheckpointError(f"{index} names {path}, which is outside its folder")
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing: {index.name} expects {len(names or ())} tensors in it, "
                f"{(names or [''])[0]} first; download the checkpoint again"
            )
    return shards


def load_tensors(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder by name, floating-point ones as `dtype`, on the CPU.

    Tensors already stored as `dtype` are views of the memory-mapped file: nothing is read until it is used.
    They must not be written to. Raises CheckpointError as `stored_tensors` does.
    """
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in stored_tensors(folder)
    }


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint folder as they are stored, views of the memory-mapped files.

    Raises CheckpointError for a damaged or truncated file, a missing shard, a tensor the index promises but
    its file lacks, one found twice, or one in a format that needs scales.
    """
    seen: set[str] = set()
    for path, expected in weight_files(folder).items():
        found: set[str] = set()
        for name, tensor in _read_file(path):
            if name in seen:
                raise CheckpointError(f"{path} has the tensor {name}, which another file of {folder} has too")
            found.add(name)
            yield name, tensor
        for name in expected or ():
            if name not in found:
                raise CheckpointError(f"{path} has no tensor {name}, which {INDEX_FILE} expects in it")
        seen |= found


def _read_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    name = None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118, it is no mapping
                stored = file.get_slice(name).get_dtype()
                if stored.startswith(UNSUPPORTED_STORAGE):
                    raise CheckpointError(
                        f"{path}: the tensor {name} is stored as {stored}; expected F32, F16 or BF16 weights"
                    )
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError, ValueError) as error:
        where = f" (at the tensor {name})" if name else ""
        raise CheckpointError(
            f"{path} is not a whole safetensors file{where}: {error}; "
            "it may be truncated, delete it and fetch it again"
        ) from error


def check_tensors(
    tensors: Mapping[str, Any],
    expected: Mapping[str, tuple[int, ...]],
    *,
    optional: Iterable[str] = (),
    file: Path | str,
) -> None:
    """Raises CheckpointError unless `tensors` are exactly the `expected` names and shapes.

    `optional` holds patterns ("*.rotary_emb.inv_freq") of names that may be absent although expected,
    or present although not; a shape that is expected is checked all the same. `file` is named in the message.
    """
    patterns = tuple(optional)

    def is_optional(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    missing = [name for name in expected if name not in tensors and not is_optional(name)]
    unexpected = [name for name in tensors if name not in expected and not is_optional(name)]
    faults = [f"missing {_shaped(name, expected[name])}" for name in missing]
    faults += [f"unexpected {_shaped(name, tensors[name].shape)}" for name in unexpected]
    faults += [
        f"{name} has the shape {_shape(tensors[name].shape)} where {_shape(shape)} is expected"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != tuple(shape)
    ]
    if faults:
        more = f", and {len(faults) - 4} more" if len(faults) > 4 else ""
        raise CheckpointError(f"{file} does not fit its config: {'; '.join(faults[:4])}{more}")


def _shaped(name: str, shape: Iterable[int]) -> str:
    return f"{name} of shape {_shape(shape)}"


def _shape(shape: Iterable[int]) -> str:
    return "[" + ", ".join(str(int(n)) for n in shape) + "]"
