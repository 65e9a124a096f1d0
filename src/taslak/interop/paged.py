"""A paged K/V cache in the form that models of transformers read and write.

Blocks, pages and prefixes are those of every other model. Only where the bits of a layer lie is different,
for layers may differ in heads, sizes and devices. A pass writes its rows where they stay, and reads what it
can without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from taslak.models.cache import PAGE, Block, Pool
from taslak.models.target import Rows


@dataclass(frozen=True, slots=True)
class Stored:
    """What a layer keeps of a position: `heads` keys and values of these sizes."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return self.heads * (self.key_size + self.value_size) * self.dtype.itemsize

    @classmethod
    def of(cls, layer: Any) -> Stored | None:
        """What a layer of transformers' own cache, filled, shows; None for one that keeps nothing: it shares
        another's. Raises ValueError, with the reason, for one that keeps more than keys and values."""
        if getattr(layer, "keys", None) is None and not hasattr(layer, "conv_states"):
            return None
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            if hasattr(layer, "conv_states"):
                raise ValueError("some layers carry a running state (linear attention, a convolution)")
            raise ValueError(f"a layer's cache, a {type(layer).__name__}, holds more than keys and values")
        keys, values = layer.keys, layer.values  # [1, heads, positions, size]
        return cls(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)


class LayeredPool(Pool):
    """A pool whose layers needn't be alike.

    layers: keys and values of each, Float[heads, slots, size]; None where a layer keeps nothing
    """

    def __init__(self, stored: Sequence[Stored | None], max_bytes: int | None = None) -> None:
        self._stored = [layer for layer in stored if layer is not None]
        self._slots = 0
        first = self._stored[0]
        super().__init__(0, 0, 0, first.dtype, first.device, max_bytes)
        self.layers = [None if layer is None else _empty(layer) for layer in stored]

    @property
    def pages(self) -> int:
        return self._slots // PAGE

    @property
    def bytes_per_position(self) -> int:
        return sum(layer.nbytes for layer in self._stored)

    @property
    def nbytes(self) -> int:
        return self._slots * self.bytes_per_position

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        for layer in self.layers:
            for tensor in layer or ():
                tensor[:, list(target)] = tensor[:, list(source)]

    def scribble(self, block: Block, positions: int) -> None:
        """Have an empty block hold so many positions of noise."""
        block.add(range(-1, positions - 1))
        where = block.slots(0, positions)
        for layer in self.layers:
            for tensor in layer or ():
                tensor[:, where] = torch.randn_like(tensor[:, where])
        block.keep(range(positions))

    def _extend(self, slots: int) -> None:
        wider: list[tuple[Tensor, Tensor] | None] = []
        for old in self.layers:
            if old is None:
                wider.append(None)
                continue
            new = tuple(tensor.new_empty((tensor.shape[0], slots, tensor.shape[2])) for tensor in old)
            for tensor, bits in zip(new, old, strict=True):
                tensor[:, : self._slots] = bits
            wider.append((new[0], new[1]))
        self.layers = wider
        self._slots = slots


def _empty(layer: Stored) -> tuple[Tensor, Tensor]:
    keys, values = (
        torch.empty((layer.heads, 0, size), dtype=layer.dtype, device=layer.device)
        for size in (layer.key_size, layer.value_size)
    )
    return keys, values


class PassCache(Cache):  # type: ignore[misc]
    """The pool as a model sees it during one pass: `enter` the rows, then call the model with it.

    before: positions that each of the pass's sequences holds, all together
    """

    def __init__(self, pool: LayeredPool) -> None:
        super().__init__(layers=[_Layer(self, index) for index in range(len(pool.layers))])
        self._pool = pool
        self.before = 0
        self._write: slice | Tensor = slice(0)
        self._read: slice | Tensor = slice(0)

    def enter(self, batch: Sequence[Rows]) -> None:
        """The rows of the next pass; their nodes are in the blocks already. A sequence's keys are read in the
        order of its slots, sequence after sequence."""
        ends = [rows.cache.length + rows.cache.nodes for rows in batch]
        self.before = sum(ends) - sum(len(rows.tokens) for rows in batch)
        starts = [end - len(rows.tokens) for rows, end in zip(batch, ends, strict=True)]
        self._write = _slots(batch, starts, ends)
        self._read = _slots(batch, [0] * len(batch), ends)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values, Float[1, heads, rows, size]; all that the pass reads comes back,
        Float[1, heads, before + rows, size]."""
        layer = self._pool.layers[layer_idx]
        assert layer is not None
        keys, values = layer
        keys[:, self._write] = key_states[0]
        values[:, self._write] = value_states[0]
        return keys[None, :, self._read], values[None, :, self._read]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a PassCache: what masks and positions are made from."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: PassCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the pool is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._cache.update(key_states, value_states, self._index)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.before + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.before

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in older releases


def _slots(batch: Sequence[Rows], starts: Sequence[int], ends: Sequence[int]) -> slice | Tensor:
    """Of positions [start, end) of each sequence, one after the other; a slice, whose rows needn't be copied,
    where they lie side by side."""
    if len(batch) == 1:
        return batch[0].cache.slots(starts[0], ends[0])
    parts = [r.cache.slots(start, end) for r, start, end in zip(batch, starts, ends, strict=True)]
    return torch.cat([torch.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts])
