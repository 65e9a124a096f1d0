"""A checkpoint's tensors under our names: renamed, turned, taken apart where several are stored as one.

Which, `taslak.models.families` says; files and quantisations are not its business.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from taslak.models.config import DecoderConfig
from taslak.models.families import FAMILIES
from taslak.models.families.family import Family, Rows

if TYPE_CHECKING:
    from torch import Tensor

DERIVED = ("*.rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias", "*.attention.bias")
"""Buffers that old checkpoints carry along and every loader computes for itself."""


def adopt(config: DecoderConfig, stored: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's tensors in Hugging Face's layout -> as `config.tensors()` names them, views where that
    can be. Names it doesn't know come through as they are."""
    family, shapes = FAMILIES[config.family], config.tensors()
    for name, tensor in stored:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in DERIVED):
            continue
        arranged = _arranged(family, name, tensor)
        for ours, rows in parts(config, name, shapes, by_head=family.by_head):
            yield ours, arranged if rows is None else arranged[rows]


def _arranged(family: Family, name: str, tensor: Tensor) -> Tensor:
    """[out, in], and what norms multiply with."""
    if family.turns(name, tensor.shape):
        return tensor.t().contiguous()
    if family.norm_offset and name.endswith("norm.weight"):
        return tensor.float() + family.norm_offset
    return tensor


def parts(
    config: DecoderConfig, name: str, shapes: Mapping[str, tuple[int, ...]], *, by_head: bool
) -> list[tuple[str, Rows]]:
    """Our names for a tensor, each with its rows. shapes: `config.tensors()`; by_head: whether q, k and v
    alternate head by head."""
    ours = FAMILIES[config.family].ours(name)
    if len(ours) == 1:
        return [(ours[0], None)]
    if by_head:
        return [(our, head_rows(config, number, len(ours))) for number, our in enumerate(ours)]
    found: list[tuple[str, Rows]] = []
    end = 0
    for our in ours:
        start, end = end, end + shapes.get(our, (0,))[0]
        found.append((our, slice(start, end)))
    return found


def head_rows(config: DecoderConfig, number: int, count: int) -> list[int]:
    """The rows of the `number`-th of `count` matrices of heads, stored head by head."""
    size = config.head_size
    return [(head * count + number) * size + i for head in range(config.heads) for i in range(size)]
