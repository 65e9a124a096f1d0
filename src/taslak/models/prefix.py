"""What earlier sequences left in the cache, found by its tokens: full pages, in a tree.

A page's K/V depends on its tokens and all before them, and on a width-invariant path on nothing else: a
sequence that begins as an earlier one did takes over the bits it would have computed itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from taslak.errors import MemoryLimitError
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
    def idle(self) -> int:
        """Pages that nobody else holds."""
        return sum(self._pool.holders(page) == 1 for page in self._pages)

    @property
    def limit(self) -> int:
        """Most bytes it holds."""
        return self._most * PAGE * self._pool.bytes_per_position

    def allocate(self, positions: int, tokens: Sequence[int]) -> Block:
        """A cache for a sequence that begins with these tokens, filled as far as they are known. Makes room
        where that helps. Raises MemoryLimitError where it doesn't."""
        shared = self.find(tokens)
        try:
            return self._pool.allocate(positions, shared)
        except MemoryLimitError:
            if not self.relieve(-(-positions // PAGE) - len(shared), shared):
                raise
            return self._pool.allocate(positions, shared)

    def relieve(self, need: int, but: Sequence[int] = ()) -> bool:
        """Let go of pages until the pool can give `need`; nothing is let go of, and False given, where that
        can't be had. Pages that running sequences hold too would give nothing. but: pages to stay."""
        room = self._pool.room
        short = need if room is None else need - room
        stay = set(but)
        idle = [n for n in self._pages.values() if n.page not in stay and self._pool.holders(n.page) == 1]
        if short > len(idle):
            return False
        # whoever holds a page holds its ancestors: what is idle has nothing but idle pages below, and older
        for node in idle[: max(short, 0)]:
            self._let_go(node)
        return True

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

    def evict(self, pages: int) -> None:
        """Let go of this many pages, those used least recently. Pages that running sequences hold too are
        free only after these."""
        for _ in range(min(pages, len(self._pages))):
            self._let_go(next(iter(self._pages.values())))

    def clear(self) -> None:
        """Let go of everything."""
        self.evict(len(self._pages))

    def _let_go(self, node: _Page) -> None:
        del self._pages[node.page]
        del (self._roots if node.parent is None else node.parent.children)[node.tokens]
        self._pool.release([node.page])

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
