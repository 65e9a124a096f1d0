"""GGUF's quantised rows as packed weights, without a detour where the numbers can stay as they are.

What becomes of a matrix, by the width asked for:

    stored as                        int4                    int8                    bfloat16
    Q4_0                             4 bits, exact           8 bits, exact           rounded
    Q4_1, Q4_K                       4 bits, exact           8 bits, rounded         rounded
    Q8_0, Q5_0                       8 bits, exact           8 bits, exact           rounded
    Q5_1, Q5_K (minima),             8 bits, rounded         8 bits, rounded         rounded
    Q6_K (groups of 16)
    F32, F16, BF16                   bfloat16                8 bits, rounded         rounded

"Exact" is to the bit but for one rounding: scale · code + minimum is rounded once here, twice in ggml.
In an int8 model some matrices are bfloat16 (`width`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taslak.native import Packed

if TYPE_CHECKING:
    import gguf
    from torch import Tensor

Blocks = npt.NDArray[np.uint8]
"""[N, blocks, block bytes]: a row's blocks of quantised weights."""

FLOATING = ("F32", "F16", "BF16")
DTYPES = ("bfloat16", "int8", "int4")
"""Widths a matrix can be packed in."""


def own_dtype(quantisations: list[str]) -> str:
    """The width of a file whose layers' matrices are stored so: int4 where any of them is, int8 where they
    are quantised otherwise, else bfloat16."""
    if any(name.startswith("Q4_") for name in quantisations):
        return "int4"
    return "int8" if any(name not in FLOATING for name in quantisations) else "bfloat16"


def width(name: str, dtype: str, layers: int) -> str:
    """What the matrix `name` of a model of `layers` layers is packed as where `dtype` is asked for.

    In int8 the v of every layer and the last layer's MLP are bfloat16, and so read activations in float32: of
    all matrices these win back the most for their bytes (measured, docs/weights.md).
    """
    wide = name.endswith(".self_attn.v_proj.weight") or name.startswith(f"model.layers.{layers - 1}.mlp.")
    return "bfloat16" if dtype == "int8" and wide else dtype


def pack_rows(rows: npt.NDArray[Any], quantisation: gguf.GGMLQuantizationType, dtype: str) -> Packed:
    """Rows as a GGUF holds them, [N, row bytes or values], packed as `dtype` says (see above)."""
    import gguf
    import torch

    name = quantisation.name
    if exact := _exact(name, dtype):
        _, width = gguf.GGML_QUANT_SIZES[quantisation]
        return exact(rows.reshape(len(rows), -1, width))
    values = np.require(gguf.dequantize(rows, quantisation), np.float32, ["C", "W"])
    narrow = "bfloat16" if dtype == "int4" and name in FLOATING else dtype
    return pack_values(torch.from_numpy(values), narrow)


def pack_values(weight: Tensor, dtype: str) -> Packed:
    """A floating matrix [N, K] packed as bfloat16 or int8; rows that don't fall into groups stay bfloat16."""
    from taslak.native.packed import GROUP

    if dtype == "bfloat16" or weight.shape[1] % GROUP:
        return Packed.bfloat16(weight)
    return Packed.int8(weight)


def _exact(name: str, dtype: str) -> Callable[[Blocks], Packed] | None:
    """What keeps the numbers of such rows, None where nothing of this width does."""
    if dtype == "int4" and name in _INT4:
        return _INT4[name]
    return _INT8.get(name) if dtype in ("int4", "int8") else None


def _q4_0(blocks: Blocks) -> Packed:
    """A float16 scale, 16 bytes of two codes each; w = scale · (code − 8)."""
    scales = _halves(blocks, 0)
    return Packed.int4(_torch(_nibbles(blocks[..., 2:])), scales, -8.0 * scales)


def _q4_1(blocks: Blocks) -> Packed:
    """Scale and minimum, both float16, 16 bytes of two codes each."""
    return Packed.int4(_torch(_nibbles(blocks[..., 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _q4_k(blocks: Blocks) -> Packed:
    """Super-blocks of 256: d and dmin (float16), 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of
    two codes each, 32 bytes for every 64 weights."""
    n, count, _ = blocks.shape
    low, high, mixed = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([low & 63, mixed & 15 | low >> 6 << 4], axis=-1)  # [N, blocks, 8]
    minima = np.concatenate([high & 63, mixed >> 4 | high >> 6 << 4], axis=-1)
    codes = _nibbles(blocks[..., 16:].reshape(n, count * 4, 32))
    d, dmin = _halves(blocks, 0).half(), _halves(blocks, 2).half()
    return Packed.int4_factors(
        _torch(codes), d, dmin, _torch(scales.reshape(n, -1)), _torch(minima.reshape(n, -1))
    )


def _q4_0_wide(blocks: Blocks) -> Packed:
    codes = _nibbles(blocks[..., 2:]).view(np.int8) - np.int8(8)
    return Packed.int8_exact(_torch(codes), _halves(blocks, 0))


def _q5_0(blocks: Blocks) -> Packed:
    """A float16 scale, 32 fifth bits, 16 bytes of two codes each; w = scale · (code − 16)."""
    fifths = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little").reshape(len(blocks), -1)  # [N, K]
    codes = (_nibbles(blocks[..., 6:]) | fifths << 4).view(np.int8) - np.int8(16)
    return Packed.int8_exact(_torch(codes), _halves(blocks, 0))


def _q8_0(blocks: Blocks) -> Packed:
    """A float16 scale, 32 signed bytes."""
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(blocks), -1)
    return Packed.int8_exact(_torch(codes), _halves(blocks, 0))


_INT4 = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
_INT8 = {"Q4_0": _q4_0_wide, "Q5_0": _q5_0, "Q8_0": _q8_0}


def _nibbles(pairs: Blocks) -> Blocks:
    """[N, blocks, bytes] -> [N, codes]: in each block first all low half-bytes, then all high ones."""
    return np.concatenate([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)


def _halves(blocks: Blocks, start: int) -> Tensor:
    """The float16 at a place of every block, widened. [N, blocks, bytes] -> Float32[N, blocks]."""
    halves = np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]
    return _torch(halves.astype(np.float32))


def _torch(array: npt.NDArray[Any]) -> Tensor:
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
