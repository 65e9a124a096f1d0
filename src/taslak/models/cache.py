"""The paged K/V cache: pages of 64 positions, a block table for each sequence, `keep` and `crop`.

Knows nothing about attention; it hands out slots and moves bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taslak.errors import MemoryLimitError

PAGE = 64
"""Positions in a page: the block attention reduces over, so that a page boundary is never inside one."""


class Pool:
    """K and V of every layer, shared by all sequences of one model.

    keys, values: Float[layers, slots, kv heads, head size]; slot = page · 64 + position within the page
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int | None = None,
    ) -> None:
        self._shape = (layers, kv_heads, head_size)
        self._free: list[int] = []  # ascending
        self._holders: dict[int, int] = {}  # of pages that more than one holds
        self.keys = torch.empty((layers, 0, kv_heads, head_size), dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self._max_pages = None if max_bytes is None else max_bytes // (PAGE * self.bytes_per_position)

    @property
    def pages(self) -> int:
        """Pages there are, free or taken."""
        return self.keys.shape[1] // PAGE

    @property
    def limit(self) -> int | None:
        """Most positions there may ever be, None = no bound."""
        return None if self._max_pages is None else self._max_pages * PAGE

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def room(self) -> int | None:
        """Pages that can still be taken, None = no bound."""
        return None if self._max_pages is None else self._max_pages - self.pages + self.free_pages

    @property
    def bytes_per_position(self) -> int:
        layers, kv_heads, head_size = self._shape
        return 2 * layers * kv_heads * head_size * self.keys.element_size()

    @property
    def nbytes(self) -> int:
        """Memory taken, free pages included."""
        return self.keys.nbytes + self.values.nbytes

    def allocate(self, positions: int, shared: Sequence[int] = ()) -> Block:
        """A block table with room for `positions`. Raises MemoryLimitError when the pool is full.

        shared: full pages it begins with, which hold its first positions already and stay whoever else's they
                are: the block holds them too, and never writes to them
        """
        fresh = self.take(max(-(-positions // PAGE) - len(shared), 0), after=shared[-1] if shared else None)
        self.share(shared)
        return Block(self, [*shared, *fresh], len(shared) * PAGE)

    def share(self, pages: Sequence[int]) -> None:
        """One more holds these pages: they are free when all have released them."""
        for page in pages:
            self._holders[page] = self._holders.get(page, 1) + 1

    def take(self, need: int, after: int | None = None) -> list[int]:
        """Pages for a block table, in a row where that can be: such a sequence is read as a view, not
        gathered. `after`: the page they should follow. Raises MemoryLimitError when the pool is full."""
        if len(self._free) < need:
            self._grow(need)
        following = [] if after is None else list(range(after + 1, after + 1 + need))
        free = set(self._free)
        pages = following if following and free.issuperset(following) else self._run(need)
        taken = set(pages)
        self._free = [page for page in self._free if page not in taken]
        return pages

    def holders(self, page: int) -> int:
        """How many hold a page that is taken."""
        return self._holders.get(page, 1)

    def release(self, pages: Sequence[int]) -> None:
        """Take pages back from one of their holders."""
        back = []
        for page in pages:
            holders = self._holders.pop(page, 1) - 1
            if holders == 0:
                back.append(page)
            elif holders > 1:
                self._holders[page] = holders
        self._free = sorted([*self._free, *back])

    def _run(self, need: int) -> list[int]:
        """The first `need` free pages in a row, else the first free ones. There are enough."""
        start = 0
        for i, page in enumerate(self._free):
            if page - self._free[start] != i - start:
                start = i
            if i - start + 1 == need:
                return self._free[start : i + 1]
        return self._free[:need]

    def _grow(self, need: int) -> None:
        """Add pages until `need` are free in a row, at least doubling so that growth stays rare."""
        old = self.pages
        new = old + max(need, old)
        if self._max_pages is not None and new > self._max_pages:
            free = self._max_pages - old + self.free_pages
            if need > free:
                raise MemoryLimitError(
                    f"the K/V cache may hold {self._max_pages * PAGE} positions and {free * PAGE} are free; "
                    f"{need * PAGE} were asked for. Use shorter prompts, fewer sequences at once, or a lower "
                    "--max-tokens"
                )
            new = self._max_pages
        try:
            self._extend(new * PAGE)
        except RuntimeError as error:  # torch reports a failed allocation as a plain RuntimeError on CPU
            asked = (new * PAGE * self.bytes_per_position) / 2**30
            raise MemoryLimitError(f"the K/V cache needs {asked:.1f} GiB, which could not be had") from error
        self._free += range(old, new)

    def _extend(self, slots: int) -> None:
        """Have so many slots, the present bits in the first. Raises RuntimeError where memory is short."""
        layers, kv_heads, head_size = self._shape
        keys, values = (
            torch.empty((layers, slots, kv_heads, head_size), dtype=t.dtype, device=t.device)
            for t in (self.keys, self.values)
        )
        keys[:, : self.keys.shape[1]] = self.keys
        values[:, : self.values.shape[1]] = self.values
        self.keys, self.values = keys, values

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy the bits of some slots to others, all read before any is written."""
        for tensor in (self.keys, self.values):
            tensor[:, list(target)] = tensor[:, list(source)]


class Block:
    """One sequence's block table.

    length:   committed positions whose K/V is here
    parents:  parent of each uncommitted node (node numbers; −1 = the committed prefix)
    depths:   positions past the committed prefix, 0 for a node whose parent is the prefix
    """

    def __init__(self, pool: Pool, pages: list[int], length: int = 0) -> None:
        """length: positions that the first pages hold already; they are never written to."""
        self._pool = pool
        self._pages = pages
        self._consecutive = _in_a_row(pages)
        self._given = length
        self.length = length
        self.parents: list[int] = []
        self.depths: list[int] = []

    @property
    def pages(self) -> Sequence[int]:
        """The block table: page of each 64 positions."""
        return self._pages

    @property
    def nodes(self) -> int:
        """Uncommitted nodes run since the last `keep`."""
        return len(self.parents)

    @property
    def capacity(self) -> int:
        """Slots: committed positions and uncommitted nodes together may not exceed it."""
        return len(self._pages) * PAGE

    def add(self, parents: Sequence[int]) -> None:
        """Enter new uncommitted nodes. parents: node numbers, −1 = the committed prefix."""
        if self.length + self.nodes + len(parents) > self.capacity:
            raise MemoryLimitError(
                f"a sequence reserved {self.capacity} cache positions and would need "
                f"{self.length + self.nodes + len(parents)}"
            )
        for parent in parents:
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
            self.parents.append(parent)

    def reserve(self, positions: int) -> None:
        """Make room for `positions` in all. Raises MemoryLimitError when the pool is full."""
        short = -(-positions // PAGE) - len(self._pages)
        if short > 0:
            self._pages += self._pool.take(short, after=self._pages[-1] if self._pages else None)
            self._consecutive = _in_a_row(self._pages)

    @property
    def is_line(self) -> bool:
        """Whether each uncommitted node follows the one before it."""
        return self.parents == list(range(-1, self.nodes - 1))

    def slots(self, start: int, stop: int) -> slice | Tensor:
        """Where positions [start, stop) of the sequence lie in the pool: a slice where the pages are in a row
        (indexing with it is a view), else Int64[stop − start]."""
        if self._consecutive:
            base = self._pages[0] * PAGE if self._pages else 0
            return slice(base + start, base + stop)
        return torch.tensor([self.slot(position) for position in range(start, stop)], dtype=torch.int64)

    def slot(self, position: int) -> int:
        """The pool slot of one position."""
        return self._pages[position // PAGE] * PAGE + position % PAGE

    def ancestors(self, node: int) -> list[int]:
        """Nodes from the first after the prefix down to `node` itself."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def keep(self, path: Sequence[int]) -> None:
        """Commit the nodes of `path` (each the parent of the next) and drop all others. Moves bits only."""
        moved = [(node, to) for to, node in enumerate(path) if node != to]
        if moved:
            self._pool.move(
                [self.slot(self.length + node) for node, _ in moved],
                [self.slot(self.length + to) for _, to in moved],
            )
        self.length += len(path)
        self.parents, self.depths = [], []

    def crop(self, length: int) -> None:
        """Forget the uncommitted nodes and every committed position from `length` on, but for shared ones."""
        self.length = min(self.length, max(length, self._given))
        self.parents, self.depths = [], []

    def release(self) -> None:
        """Give the pages back; the block is unusable afterwards. Calling it twice is harmless."""
        self._pool.release(self._pages)
        self._pages = []
        self._consecutive = True
        self._given = 0
        self.crop(0)


def _in_a_row(pages: Sequence[int]) -> bool:
    return not pages or list(pages) == list(range(pages[0], pages[0] + len(pages)))
