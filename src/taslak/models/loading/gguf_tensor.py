"""A GGUF's tensors in the order and shape that is wanted of them, dequantised piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taslak.models.config import DecoderConfig
from taslak.models.loading.adopt import parts

if TYPE_CHECKING:  # imported with the first file that is opened
    import gguf
    import torch

# Big enough to keep the cores busy, small enough that all cores' chunks together are a few tens of MB.
CHUNK_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class SourceTensor:
    """One tensor still as the file holds it: `rows` [rows, row bytes or values], quantised; of a vector one.

    order:   the rows (of a vector the numbers) as they are wanted; None = as they are
    turned:  whether `chunks` gives the matrix [in, out]
    shift:   added to every number by `chunks`
    """

    name: str
    shape: tuple[int, ...]
    rows: npt.NDArray[Any]
    quantisation: gguf.GGMLQuantizationType
    order: npt.NDArray[np.int64] | None = None
    turned: bool = False
    shift: float = 0.0

    def split(self, config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[SourceTensor]:
        """Under our names, taken apart where several matrices are stacked. shapes: `config.tensors()`."""
        found = []
        for name, rows in parts(config, self.name, shapes, by_head=False):
            if rows is None:
                found.append(replace(self, name=name))
                continue
            picked = self.rows[rows] if len(self.shape) == 2 else self.rows[:, rows]
            count = len(picked) if len(self.shape) == 2 else picked.shape[1]
            found.append(replace(self, name=name, rows=picked, shape=(count, *self.shape[1:])))
        return found

    def pieces(self, multiple: int = 1) -> list[npt.NDArray[Any]]:
        """The rows as they are stored, in the Hugging Face order, a few million weights at a time.

        multiple: of how many rows every piece but the last is to be
        """
        rows = self.rows
        if self.order is not None:
            rows = rows[self.order] if len(self.shape) == 2 else rows[:, self.order]
        step = max(1, CHUNK_ELEMENTS // self.shape[-1] // multiple) * multiple
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    def values(self) -> npt.NDArray[np.float32]:
        """All numbers, in their shape."""
        import gguf

        whole = [np.asarray(gguf.dequantize(piece, self.quantisation), np.float32) for piece in self.pieces()]
        return np.concatenate(whole).reshape(self.shape)

    def chunks(self, dtype: torch.dtype) -> Iterator[memoryview]:
        """The tensor's bytes as `dtype`, in order, in pieces of a few MB; uses every core."""
        if self.turned:
            values = replace(self, shape=self.shape[::-1], turned=False).values()
            yield _as_bytes(np.ascontiguousarray(values.T), dtype)
            return
        pieces = self.pieces()
        convert = partial(_dequantise, quantisation=self.quantisation, dtype=dtype, shift=self.shift)
        workers = min(len(pieces), os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            # In batches, so that no more than one chunk a core is ever held.
            for start in range(0, len(pieces), workers):
                yield from pool.map(convert, pieces[start : start + workers])


def _dequantise(
    rows: npt.NDArray[Any], quantisation: gguf.GGMLQuantizationType, dtype: torch.dtype, shift: float
) -> memoryview:
    """Quantised rows, and `shift`, as the raw bytes of `dtype` (rounded to nearest even)."""
    import gguf

    # Unquantised rows come back as the read-only mapping itself, which torch won't take: hence "W".
    values = np.require(gguf.dequantize(rows, quantisation), np.float32, ["C", "W"])
    return _as_bytes(values + np.float32(shift) if shift else values, dtype)


def _as_bytes(values: npt.NDArray[np.float32], dtype: torch.dtype) -> memoryview:
    import torch

    if dtype == torch.float32:
        return values.data.cast("B")
    # numpy has no bfloat16: pass the bits through as int16.
    bits: npt.NDArray[np.int16] = torch.from_numpy(values).to(dtype).view(torch.int16).numpy()
    return bits.data.cast("B")
