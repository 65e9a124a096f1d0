"""From a model's name to a checkpoint folder, and from the folder to its tensors.

A name is a local folder in the Hugging Face layout, a local `.gguf` file, a pack (packs.toml), or a Hub id
(`org/name`). Whatever it is, the result is a local folder in the Hugging Face layout.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from taslak.errors import ModelNotFound
from taslak.models.loading import converted, hub, huggingface
from taslak.models.loading.huggingface import check_tensors, load_tensors
from taslak.models.loading.packs import DEFAULT_PACK, Notice, Pack, fetch, find_pack, packs
from taslak.models.loading.storage import Progress, cache_home

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_PACK",
    "Notice",
    "Pack",
    "Progress",
    "cache_home",
    "check_tensors",
    "fetch",
    "find_pack",
    "load_tensors",
    "packs",
    "resolve",
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
    text, path = str(name), Path(name).expanduser()
    if (path / "config.json").is_file():
        huggingface.check_folder(path)
        return path
    if path.is_file():
        return converted.convert(path, dtype, progress=progress)
    if pack := find_pack(text):
        folder = converted.converted_folder(Path(pack.file).stem, pack.sha256, dtype)
        if folder.is_dir():  # the GGUF itself may be gone, to save room
            return folder
        source = fetch(pack, progress=progress, notice=notice)
        return converted.convert(source, dtype, digest=pack.sha256, progress=progress)
    if text and path.is_dir():
        huggingface.check_folder(path)
    if hub.is_hub_id(text) and not text.lower().endswith(".gguf"):
        return hub.snapshot(text, progress)
    close = difflib.get_close_matches(text.lower(), packs(), n=1, cutoff=0.5)
    raise ModelNotFound(
        f"there is no model {text!r}: expected a folder of safetensors, a .gguf file, a Hub id (org/name), "
        f"or one of the packs {', '.join(packs())}" + (f". Did you mean {close[0]}?" if close else "")
    )
