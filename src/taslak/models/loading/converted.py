"""Converted models: a GGUF file written once as a Hugging Face folder, mapped into memory ever after.

The folder's name holds the digest of the source, the dtype and the version of the converter, so a folder
that is there is right, and one that would come out differently has another name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from taslak.errors import CheckpointError, OptionError
from taslak.models.loading import gguf_tokenizer, huggingface, storage
from taslak.models.loading.gguf import GGUFModel
from taslak.models.loading.remembered import gguf_digest
from taslak.models.loading.storage import Progress

if TYPE_CHECKING:
    import torch

# Raise it whenever the same GGUF would be written differently.
CONVERTER_VERSION = 2
# Tensors begin at a multiple of this in the file, and so in memory, as wide loads like it.
ALIGNMENT_BYTES = 64
DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}


def converted_folder(name: str, digest: str, dtype: torch.dtype) -> Path:
    """Where the conversion of the GGUF with this SHA-256 lies, or will. Raises OptionError for the dtype."""
    return (
        storage.cache_home() / "converted" / f"{name}-{digest[:16]}-{_dtype_name(dtype)}-v{CONVERTER_VERSION}"
    )


def convert(
    source: Path, dtype: torch.dtype, *, digest: str | None = None, progress: Progress | None = None
) -> Path:
    """The Hugging Face folder of a GGUF file, written now where it is not there yet.

    `digest` is the source's SHA-256 where it is known; else the file is hashed, once.
    Raises CheckpointError (not a GGUF, or an unsupported one), DiskError, OptionError (dtype).
    """
    _dtype_name(dtype)
    digest = digest or gguf_digest(source, progress)
    target = converted_folder(source.stem, digest, dtype)
    return storage.build(
        target, lambda folder: _write_model(GGUFModel(source), folder, dtype, progress), progress
    )


def _write_model(model: GGUFModel, folder: Path, dtype: torch.dtype, progress: Progress | None) -> None:
    """Writes every file of the Hugging Face layout for `model` into `folder`."""
    stored, item = DTYPES[_dtype_name(dtype)]
    shapes = {tensor.name: tensor.shape for tensor in model.stored()}
    total = sum(item * _count(shape) for shape in shapes.values())
    what = f"converting {model.path.name} to {_dtype_name(dtype)}"
    storage.require_free(folder, total, what)
    with storage.full_disk_is_an_error(folder, what):
        write_settings(model, folder, _dtype_name(dtype))
        with SafetensorsWriter(folder / huggingface.SINGLE_FILE, stored, item, shapes) as writer:
            for tensor in model.stored():
                for chunk in tensor.chunks(dtype):
                    writer.write(tensor.name, chunk)
                    if progress is not None:
                        progress(what, writer.written, total)


def write_settings(model: GGUFModel, folder: Path, dtype: str) -> None:
    """The tokenizer, config.json and generation_config.json of a GGUF.

    To be called before any weights are written: what is unsupported should be found out before gigabytes are.
    """
    config = model.config()
    tokenizer = gguf_tokenizer.GGUFTokenizer(model)
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    tokenizer.save(folder)
    storage.write_json(folder / "config.json", config | {"torch_dtype": dtype} | ids)
    storage.write_json(folder / "generation_config.json", ids | {"eos_token_id": list(tokenizer.eos_ids)})


class SafetensorsWriter:
    """Writes one safetensors file piece by piece, never holding more than the piece at hand.

    The format: 8 bytes header length (little-endian), a JSON header of names, dtypes, shapes and offsets,
    then the tensors' raw bytes one behind another. `shapes` fixes the order in which they must be written.
    """

    def __init__(self, path: Path, dtype: str, item_bytes: int, shapes: Mapping[str, Iterable[int]]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._ends: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            start, end = end, end + item_bytes * _count(shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
            self._ends[name] = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)  # the format allows trailing spaces
        self._total = end
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115, closed by __exit__
        self._file.write(len(text).to_bytes(8, "little") + text)
        self.written = 0

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Appends the next bytes of the tensor `name`."""
        self.written += self._file.write(data)
        if self.written > self._ends[name]:
            raise CheckpointError(f"{self._path}: the tensor {name} is longer than its shape says")

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._file.close()
            return
        storage.close_durably(self._file)
        if self.written != self._total:
            raise CheckpointError(
                f"{self._path}: {self.written} bytes were written where {self._total} belong"
            )


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"the dtype {name} is not supported; choose one of: {', '.join(DTYPES)}")
    return name


def _count(shape: Iterable[int]) -> int:
    count = 1
    for n in shape:
        count *= int(n)
    return count
