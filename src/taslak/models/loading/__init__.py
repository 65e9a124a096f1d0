"""From a model's name to a checkpoint folder, and from the folder to its tensors.

A name is a local folder in the Hugging Face layout, a local `.gguf` file, a pack (packs.toml), or a Hub id
(`org/name`). Whatever it is, the result is a local folder in the Hugging Face layout.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from taslak.errors import ModelNotFound, OptionError
from taslak.models.loading import converted, hub, huggingface, packed, remembered
from taslak.models.loading.adopt import adopt
from taslak.models.loading.huggingface import check_tensors, load_tensors
from taslak.models.loading.packed import load_packed, packed_bytes
from taslak.models.loading.packs import DEFAULT_PACK, Notice, Pack, fetch, find_pack, packs
from taslak.models.loading.storage import Progress, cache_home

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_PACK",
    "Notice",
    "Pack",
    "Progress",
    "adopt",
    "cache_home",
    "check_tensors",
    "fetch",
    "find_pack",
    "load_packed",
    "load_tensors",
    "own_dtype",
    "packed_bytes",
    "packs",
    "resolve",
    "resolve_packed",
]


def resolve(
    name: str | Path,
    *,
    dtype: torch.dtype,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Path:
    """The local checkpoint folder for a model's name, in the Hugging Face layout.

    It holds config.json, safetensors, a tokenizer, and for converted models generation_config.json. A pack
    or Hub id is downloaded and a GGUF converted to `dtype` (float32 or bfloat16) where that has not been done
    yet; a folder of safetensors is returned as it is, whatever its dtype. A local folder with a config.json,
    or a file, goes before a pack or Hub id of the same name. `notice` gets a pack's licence notice before its
    first download (None: printed to standard error).

    Raises ModelNotFound, CheckpointError, DownloadError, DiskError, OptionError (dtype).
    """
    found = _find(name)
    if isinstance(found, Pack):
        folder = converted.converted_folder(Path(found.file).stem, found.sha256, dtype)
        if folder.is_dir():  # the GGUF itself may be gone, to save room
            return folder
        source = fetch(found, progress=progress, notice=notice)
        return converted.convert(source, dtype, digest=found.sha256, progress=progress)
    if isinstance(found, str):
        return hub.snapshot(found, progress)
    return found if found.is_dir() else converted.convert(found, dtype, progress=progress)


def resolve_packed(
    name: str | Path, *, dtype: str, progress: Progress | None = None, notice: Notice | None = None
) -> tuple[Path, Path]:
    """The same for weights packed as "bfloat16", "int8" or "int4".

    -> the folder of config and tokenizer, and that of the packed weights, which for a GGUF is the same one.

    Raises what `resolve` does; OptionError also for int4 of a model that is not stored in 4 bits.
    """
    if dtype == "int4" and own_dtype(name) != "int4":
        raise OptionError(
            f"{name} holds no 4-bit weights: int4 keeps those of a GGUF (Q4_0, Q4_1, Q4_K) as they are "
            "and makes none of its own; use int8"
        )
    found = _find(name)
    if isinstance(found, Pack):
        folder = packed.packed_folder(Path(found.file).stem, found.sha256, dtype)
        if not folder.is_dir():
            source = fetch(found, progress=progress, notice=notice)
            folder = packed.pack_gguf(source, dtype, digest=found.sha256, progress=progress)
        return folder, folder
    if isinstance(found, str):
        found = hub.snapshot(found, progress)
    if found.is_dir():
        return found, packed.pack_folder(found, dtype, progress=progress)
    folder = packed.pack_gguf(found, dtype, progress=progress)
    return folder, folder


def own_dtype(name: str | Path) -> str:
    """The width a checkpoint itself has: "int4" or "int8" for a GGUF whose matrices are stored so, else
    "bfloat16". Nothing is downloaded for it. Raises ModelNotFound, CheckpointError."""
    found = _find(name)
    if isinstance(found, Pack):
        return found.dtype
    return remembered.gguf_dtype(found) if isinstance(found, Path) and found.is_file() else "bfloat16"


def _find(name: str | Path) -> Path | Pack | str:
    """What a name is: a local folder or file, a pack, or a Hub id. Raises ModelNotFound, CheckpointError."""
    text, path = str(name), Path(name).expanduser()
    if (path / "config.json").is_file():
        huggingface.check_folder(path)
        return path
    if path.is_file():
        return path
    if pack := find_pack(text):
        return pack
    if text and path.is_dir():
        huggingface.check_folder(path)
    if hub.is_hub_id(text) and not text.lower().endswith(".gguf"):
        return text
    close = difflib.get_close_matches(text.lower(), packs(), n=1, cutoff=0.5)
    raise ModelNotFound(
        f"there is no model {text!r}: expected a folder of safetensors, a .gguf file, a Hub id (org/name), "
        f"or one of the packs {', '.join(packs())}" + (f". Did you mean {close[0]}?" if close else "")
    )
