"""What earlier sequences left in the cache, found by its tokens: full pages, in a tree.

A page's K/V depends on its tokens and all before them, and on a width-invariant path on nothing else: a
sequence that begins as an earlier one did takes over the bits it would have computed itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from taslak.models.cache import PAGE, Block, Pool


@dataclass(slots=True, eq=False)
class _Page:
    """A node of the tree: 64 tokens after those of its ancestors. page: where their K/V lies in the pool."""

    tokens: tuple[int, ...]
    page: int
    parent: _Page | None
    children: dict[tuple[int, ...], _Page] = field(default_factory=dict)


class PrefixCache:
    """Holds pages of one model's pool beyond the sequences that filled them, up to a bound; what was used
    least recently goes first.

    hit_tokens: prompt tokens that needed no pass so far
    """

    def __init__(self, pool: Pool, max_bytes: int) -> None:
        self._pool = pool
        self._most = max_bytes // (PAGE * pool.bytes_per_position)
        self._roots: dict[tuple[int, ...], _Page] = {}
        # by last use, the oldest first. Whoever uses a page uses its ancestors after it: the oldest is a leaf
        self._pages: OrderedDict[int, _Page] = OrderedDict()
        self.hit_tokens = 0

    @property
    def nbytes(self) -> int:
        """Memory of the pages held."""
        return len(self._pages) * PAGE * self._pool.bytes_per_position

    @property
    def limit(self) -> int:
        """Most bytes it holds."""
        return self._most * PAGE * self._pool.bytes_per_position

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Pages of the longest known beginning, for `Pool.allocate`. The last token is never in them: it has
        to go through the target for its logits."""
        path = self._path(tokens, len(tokens) - 1)
        self._use(path)
        return [node.page for node in path]

    def keep(self, tokens: Sequence[int], block: Block) -> None:
        """Hold the full pages of a sequence from now on. tokens: the committed ones, of which the block holds
        the first `block.length`; the sequence may go on."""
        full = block.length // PAGE
        path = self._path(tokens, full * PAGE)
        for i in range(len(path), full):
            key = tuple(tokens[i * PAGE : (i + 1) * PAGE])
            node = _Page(key, block.pages[i], path[-1] if path else None)
            (path[-1].children if path else self._roots)[key] = node
            self._pages[node.page] = node
            self._pool.share([node.page])
            path.append(node)
        self._use(path)
        self.evict(len(self._pages) - self._most)

    def evict(self, pages: int) -> bool:
        """Let go of this many pages, those used least recently; whether there were any. Pages that running
        sequences hold too are free only after these."""
        some = False
        while pages > 0 and self._pages:
            _, node = self._pages.popitem(last=False)
            del (self._roots if node.parent is None else node.parent.children)[node.tokens]
            self._pool.release([node.page])
            pages -= 1
            some = True
        return some

    def clear(self) -> None:
        """Let go of everything."""
        self.evict(len(self._pages))

    def _path(self, tokens: Sequence[int], most: int) -> list[_Page]:
        """The known pages from the beginning on, within the first `most` tokens."""
        path: list[_Page] = []
        known = self._roots
        for start in range(0, most - PAGE + 1, PAGE):
            node = known.get(tuple(tokens[start : start + PAGE]))
            if node is None:
                break
            path.append(node)
            known = node.children
        return path

    def _use(self, path: Sequence[_Page]) -> None:
        for node in reversed(path):
            self._pages.move_to_end(node.page)
