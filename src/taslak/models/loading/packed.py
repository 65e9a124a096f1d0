"""Packed models: a checkpoint's weights in the layout the native kernels read, written once.

A folder holds `weights.bin` and `weights.json`, which says what lies where; one made of a GGUF holds its
config and tokenizer as well. Its name holds the digest of the source, the width, and a digest of the layout
itself: a kernel that reads another layout finds another folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from taslak.errors import CheckpointError
from taslak.models.config import DecoderConfig
from taslak.models.families import FAMILIES
from taslak.models.loading import huggingface, large_pages, quantised, remembered, storage
from taslak.models.loading.adopt import adopt
from taslak.models.loading.converted import write_settings
from taslak.models.loading.gguf import GGUFModel
from taslak.models.loading.storage import Progress
from taslak.native import Packed

if TYPE_CHECKING:
    from torch import Tensor

DATA_FILE, INDEX_FILE = "weights.bin", "weights.json"
# Raise it whenever the same source would be packed differently; the layout has a digest of its own.
PACKER_VERSION = 3
EMBEDDING = "model.embed_tokens.weight"
"""Comes last in the file: unless it is the head too, a pass reads a few of its rows and it stays mapped."""
POSITIONS = "model.embed_positions.weight"
"""Added as it is."""

ALIGNMENT_BYTES = 64
# Rows of every layout's panels divide this, so that pieces can be packed one by one.
PIECE_ROWS = 64
BYTES_PER_WEIGHT = {"bfloat16": 2.0, "int8": 1.07, "int4": 0.66}


def packed_folder(name: str, digest: str, dtype: str) -> Path:
    """Where the packed weights of the source with this digest lie, or will."""
    version = f"v{PACKER_VERSION}-{_layout()}"
    return storage.cache_home() / "packed" / f"{name}-{digest[:16]}-{dtype}-{version}"


def pack_gguf(
    source: Path, dtype: str, *, digest: str | None = None, progress: Progress | None = None
) -> Path:
    """The packed folder of a GGUF file, config and tokenizer included, written now where it is not there yet.

    dtype:  "bfloat16", "int8" or "int4"; `quantised` says what becomes of each matrix
    digest: the source's SHA-256 where it is known; else the file is hashed, once

    Raises CheckpointError (not a GGUF, or an unsupported one), DiskError.
    """
    digest = digest or remembered.gguf_digest(source, progress)
    target = packed_folder(source.stem, digest, dtype)
    return storage.build(
        target, lambda folder: _write_gguf(GGUFModel(source), folder, dtype, progress), progress
    )


def pack_folder(source: Path, dtype: str, *, progress: Progress | None = None) -> Path:
    """The packed weights of a folder of safetensors, as "bfloat16" or "int8".

    Raises CheckpointError, DiskError.
    """
    files = list(huggingface.weight_files(source))
    digests = [f"{file.name} {remembered.digest(file, progress)}" for file in files]
    target = packed_folder(source.name, hashlib.sha256("\n".join(digests).encode()).hexdigest(), dtype)
    size = sum(file.stat().st_size for file in files)
    return storage.build(
        target, lambda folder: _write_folder(source, folder, dtype, size, progress), progress
    )


def load_packed(folder: Path) -> dict[str, Tensor | Packed]:
    """Every weight of a packed folder: matrices as Packed, the rest as Float32 vectors.

    What a pass reads is in large pages, mapped or read (see `large_pages`). An embedding that is not the
    head stays in the mapped file. Raises CheckpointError.
    """
    path, index = folder / DATA_FILE, storage.read_json(folder / INDEX_FILE)
    try:
        resident = int(index["resident"])
        if path.stat().st_size != index["bytes"]:
            raise ValueError(f"{path.stat().st_size} bytes where {index['bytes']} belong")
        read, mapped = large_pages.load(path, resident)
        weights = {}
        for name, entry in index["tensors"].items():
            start, end = entry["offset"], entry["offset"] + entry["bytes"]
            data = (read if start < resident else mapped)[start:end]
            weights[name] = _weight(entry["kind"], entry["shape"], data)
        return weights
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder} is damaged ({error}): delete it, it will be written again"
        ) from error


def packed_bytes(folder: Path) -> int:
    """Memory `load_packed` takes at least: what a pass reads. Raises CheckpointError."""
    try:
        return int(storage.read_json(folder / INDEX_FILE)["resident"])
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"{folder} is damaged: delete it, it will be written again") from None


@lru_cache(maxsize=1)
def _layout() -> str:
    """Which layout this build packs in: a digest of some packed numbers."""
    from taslak import _native

    return remembered.remember(Path(_native.__file__), "layout", _packed_numbers)


def _packed_numbers() -> str:
    """A digest of what packing makes of some numbers, in every kind."""
    import torch

    n, k = 70, 512
    numbers = torch.arange(n * k, dtype=torch.int64) * 2654435761 % 65521
    codes, groups = numbers.view(n, k), numbers.view(n, k)[:, : k // 32]
    scales = groups.float() / 4096.0
    d, small = scales[:, :2].half(), (groups % 64).to(torch.uint8)
    nibbles = (codes % 16).to(torch.uint8)
    matrices = [
        Packed.bfloat16(codes.float()),
        Packed.int8_exact((codes % 255 - 127).to(torch.int8), scales.half()),
        Packed.int8_exact((codes % 255 - 127).to(torch.int8), scales / 3.0),
        Packed.int4(nibbles, scales.half(), -scales.half()),
        Packed.int4(nibbles, scales / 3.0, -scales),
        Packed.int4_factors(nibbles, d, d, small, small),
    ]
    digest = hashlib.sha256()
    for matrix in matrices:
        digest.update(matrix.kind.encode() + matrix.buffer.numpy().tobytes())
    return digest.hexdigest()[:8]


def _write_gguf(model: GGUFModel, folder: Path, dtype: str, progress: Progress | None) -> None:
    what = f"packing {model.path.name} as {dtype}"
    config = model.decoder
    shapes = config.tensors()
    whole = [part for tensor in model.tensors() for part in tensor.split(config, shapes)]
    tensors = sorted(whole, key=lambda tensor: tensor.name == EMBEDDING)
    widths = {tensor.name: quantised.width(tensor.name, dtype, config.layers) for tensor in tensors}
    needed = 0.0
    for tensor in tensors:
        kept = dtype == "int4" and not tensor.quantisation.name.startswith("Q4_")
        matrix = _is_matrix(tensor.name, tensor.shape)
        each = BYTES_PER_WEIGHT["int8" if kept else widths[tensor.name]] if matrix else 4.0
        needed += each * math.prod(tensor.shape)
    storage.require_free(folder, int(needed), what)
    done, total = 0, sum(tensor.rows.nbytes for tensor in tensors)
    with storage.full_disk_is_an_error(folder, what):
        write_settings(model, folder, dtype)
        with _Writer(folder, config.tied) as writer:
            for tensor in tensors:
                if not _is_matrix(tensor.name, tensor.shape):
                    writer.vector(tensor.name, tensor.values())
                    done += tensor.rows.nbytes
                    continue
                for rows in tensor.pieces(PIECE_ROWS):
                    packed = quantised.pack_rows(rows, tensor.quantisation, widths[tensor.name])
                    writer.matrix(tensor.name, packed)
                    done += rows.nbytes
                    if progress is not None:
                        progress(what, done, total)
            if progress is not None:
                progress(what, done, total)


def _write_folder(source: Path, folder: Path, dtype: str, size: int, progress: Progress | None) -> None:
    import torch

    what = f"packing {source.name} as {dtype}"
    storage.require_free(folder, size, what)
    config = DecoderConfig.from_folder(source)
    ours = FAMILIES[config.family].ours
    done = 0
    with storage.full_disk_is_an_error(folder, what), _Writer(folder, config.tied) as writer:
        for last in (False, True):
            stored = huggingface.stored_tensors(source)
            some = ((name, tensor) for name, tensor in stored if (ours(name) == (EMBEDDING,)) is last)
            for name, tensor in adopt(config, some):
                if config.tied and name == "lm_head.weight":
                    continue
                if _is_matrix(name, tensor.shape):
                    step = max(1, (1 << 21) // tensor.shape[1] // PIECE_ROWS) * PIECE_ROWS
                    width = quantised.width(name, dtype, config.layers)
                    for rows in torch.split(tensor, step):
                        writer.matrix(name, quantised.pack_values(rows, width))
                else:
                    writer.vector(name, tensor.float().numpy())
                done += tensor.nbytes
                if progress is not None:
                    progress(what, done, size)


def _is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a product reads it, or rows of it are looked up."""
    return len(shape) == 2 and name != POSITIONS


class _Writer:
    """Writes weights.bin piece by piece, and at the end the index that makes the folder readable."""

    def __init__(self, folder: Path, tied: bool) -> None:
        self._folder = folder
        self._tied = tied
        self._file = open(folder / DATA_FILE, "wb")  # noqa: SIM115, closed by __exit__
        self._tensors: dict[str, dict[str, Any]] = {}

    def matrix(self, name: str, rows: Packed) -> None:
        """The next rows of a matrix; all but its last ones in multiples of PIECE_ROWS."""
        n, k = rows.shape
        entry = self._entry(name, rows.kind, [0, k])
        if entry["kind"] != rows.kind:
            raise CheckpointError(
                f"{name} has scales beyond float16 in some of its rows, which is not supported"
            )
        entry["shape"][0] += n
        self._write(entry, rows.buffer.numpy())

    def vector(self, name: str, values: Any) -> None:
        """A whole tensor that is no matrix. values: float32."""
        self._write(self._entry(name, "float32", list(values.shape)), np.ascontiguousarray(values))

    def _entry(self, name: str, kind: str, shape: list[int]) -> dict[str, Any]:
        if name not in self._tensors:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT_BYTES))
            self._tensors[name] = {"kind": kind, "shape": shape, "offset": self._file.tell(), "bytes": 0}
        return self._tensors[name]

    def _write(self, entry: dict[str, Any], data: Any) -> None:
        entry["bytes"] += self._file.write(data.data)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._file.close()
            return
        size = self._file.tell()
        storage.close_durably(self._file)
        large_pages.forget(self._folder / DATA_FILE)
        embedding = self._tensors.get(EMBEDDING)
        resident = size if embedding is None or self._tied else embedding["offset"]
        index = {"bytes": size, "resident": resident, "tensors": self._tensors}
        storage.write_json(self._folder / INDEX_FILE, index)


def _weight(kind: str, shape: list[int], data: Tensor) -> Tensor | Packed:
    """What was written as `kind`. data: UInt8, its bytes."""
    import torch

    if kind == "float32":
        return data.view(torch.float32).view(shape)
    return Packed.from_buffer(kind, shape, data)
