"""Pages, block tables, and what `keep` moves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.errors import MemoryLimitError
from taslak.models.cache import PAGE, Block, Pool


def pool(max_pages: int | None = None) -> Pool:
    page_bytes = 2 * 2 * 1 * 4 * 4 * PAGE  # keys and values, 2 layers, 1 head of 4, float32
    most = None if max_pages is None else max_pages * page_bytes
    return Pool(2, 1, 4, torch.float32, torch.device("cpu"), max_bytes=most)


def write(p: Pool, block: Block, position: int, value: float) -> None:
    p.keys[:, block.slot(position)] = value
    p.values[:, block.slot(position)] = -value


def read(p: Pool, block: Block) -> list[float]:
    where = block.slots(0, block.length)
    assert torch.equal(p.keys[:, where], -p.values[:, where])
    return p.keys[0, where, 0, 0].tolist()


@settings(max_examples=60)
@given(data=st.data())
def test_keep_leaves_exactly_the_path(data: st.DataObject) -> None:
    """Against a plain list, over several steps, with the sequence's pages in a row and scattered."""
    p = pool()
    if data.draw(st.booleans()):  # free pages that don't lie in a row
        blocks = [p.allocate(PAGE) for _ in range(7)]
        for block in blocks[::2]:
            block.release()
    block = p.allocate(3 * PAGE)
    expected: list[float] = []
    value = 0.0
    for _ in range(data.draw(st.integers(1, 6))):
        n = data.draw(st.integers(1, 24))
        parents = [-1, *(data.draw(st.integers(-1, i)) for i in range(n - 1))]
        block.add(parents)
        values = []
        for node in range(n):
            value += 1.0
            values.append(value)
            write(p, block, block.length + node, value)
        path = block.ancestors(data.draw(st.integers(0, n - 1)))
        assert block.depths[path[-1]] == len(path) - 1
        block.keep(path)
        expected += [values[node] for node in path]
        if data.draw(st.booleans()):
            block.crop(data.draw(st.integers(0, len(expected))))
            del expected[block.length :]
        assert read(p, block) == expected


def test_growth_keeps_what_is_there() -> None:
    p = pool()
    first = p.allocate(PAGE)
    first.add([-1])
    write(p, first, 0, 5.0)
    first.keep([0])
    p.allocate(40 * PAGE)
    assert read(p, first) == [5.0]


def test_released_pages_are_used_again() -> None:
    p = pool()
    for _ in range(50):
        blocks = [p.allocate(n) for n in (1, PAGE, 3 * PAGE)]
        for block in blocks:
            block.release()
            block.release()  # harmless
    assert p.pages <= 10
    assert p.free_pages == p.pages


def test_a_full_pool_says_so() -> None:
    p = pool(max_pages=4)
    held = p.allocate(3 * PAGE)
    with pytest.raises(MemoryLimitError, match="64 are free"):
        p.allocate(2 * PAGE)
    held.release()
    assert p.allocate(4 * PAGE).capacity == 4 * PAGE


def test_more_nodes_than_reserved_are_refused() -> None:
    block = pool().allocate(PAGE)
    with pytest.raises(MemoryLimitError, match="reserved 64"):
        block.add([-1] * 65)


def test_reserving_more_keeps_what_is_there_and_stays_in_a_row_where_it_can() -> None:
    p = pool()
    block = p.allocate(0)
    for positions in (1, PAGE, PAGE + 1, 5 * PAGE, 3):
        block.reserve(positions)
        assert block.capacity >= positions
    block.add([-1])
    write(p, block, 0, 2.0)
    block.keep([0])
    block.reserve(9 * PAGE)
    assert read(p, block) == [2.0]
    assert isinstance(block.slots(0, 9 * PAGE), slice)
    other = p.allocate(PAGE)
    block.reserve(40 * PAGE)
    assert read(p, block) == [2.0]
    assert len({block.slot(i) for i in range(40 * PAGE)} | {other.slot(0)}) == 40 * PAGE + 1


def test_scattered_free_pages_are_used_before_the_pool_grows() -> None:
    p = pool()
    blocks = [p.allocate(PAGE) for _ in range(8)]
    for block in blocks[::2]:
        block.release()
    pages = p.pages
    assert p.allocate(4 * PAGE).capacity == 4 * PAGE
    assert p.pages == pages
