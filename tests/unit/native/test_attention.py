"""Native attention: right against float64, and one row's bits whatever stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.models.cache import PAGE
from taslak.models.ops import Share
from taslak.native import set_threads, threads
from taslak.native.build import extension
from tests.support.tiny import tiny_model
from tests.unit.native.paths import PATHS, on_path

SLOTS = 40 * PAGE
DTYPES = (torch.float32, torch.bfloat16)
HEADS = st.sampled_from([(1, 1), (4, 2), (9, 3), (12, 2), (7, 7)])
SIZES = st.sampled_from([8, 16, 20, 64, 80, 128, 256])
WINDOWS = st.sampled_from([0, 0, 1, 5, 20, 63, 64, 65, 100])
CAPS = st.sampled_from([0.0, 0.0, 3.0, 50.0])


@dataclass
class Sequence:
    """A sequence in the pool; `rows` are the nodes that the pass runs."""

    pages: list[int]
    length: int
    parents: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def slot(self, position: int) -> int:
        return self.pages[position // PAGE] * PAGE + position % PAGE

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def keys(self, node: int, window: int = 0) -> list[int]:
        """Slots of what the node sees, by absolute position; with a window the last so many."""
        positions = [*range(self.length), *(self.length + n for n in self.path(node))]
        return [self.slot(position) for position in positions[-window:]]


def attend(
    sequences: list[Sequence],
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int = 0,
    cap: float = 0.0,
) -> torch.Tensor:
    """q: Float32[R, heads, d]; keys, values: [slots, kv heads, d] -> [R, heads, d]."""
    plan = extension.Plan([(s.pages, s.length, s.parents, s.rows, 0) for s in sequences])
    assert plan.rows == q.shape[0]
    q, out = q.contiguous(), torch.empty_like(q)
    slots, kv_heads, size = keys.shape
    half = keys.dtype == torch.bfloat16
    addresses = (t.data_ptr() for t in (q, keys, values))
    shape = (half, slots, kv_heads, size, q.shape[1], size**-0.5)
    extension.attend(plan, *addresses, *shape, out.data_ptr(), window, cap)
    return out


def expected(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cap: float = 0.0) -> torch.Tensor:
    """One row in float64. q: [heads, d]; keys, values: [n, kv heads, d]."""
    group = q.shape[0] // keys.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (keys, values))
    scores = torch.einsum("hd,nhd->hn", q.double(), k) * q.shape[1] ** -0.5
    weights = torch.softmax(torch.tanh(scores / cap) * cap if cap else scores, dim=-1)
    return torch.einsum("hn,nhd->hd", weights, v)


@st.composite
def passes(draw: st.DrawFn, longest: int = 200) -> list[Sequence]:
    """Up to three sequences, their pages scattered over the pool, each with a random tree."""
    free = draw(st.permutations(range(SLOTS // PAGE)))
    sequences = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.one_of(st.integers(0, longest), st.sampled_from((62, 63, 64, 65, 127, 128))))
        nodes = draw(st.integers(1, 20))
        kind = draw(st.sampled_from(("chain", "star", "tree")))
        parents = [-1]
        for i in range(1, nodes):
            parents.append({"chain": i - 1, "star": -1, "tree": draw(st.integers(-1, i - 1))}[kind])
        rows = sorted(draw(st.sets(st.integers(0, nodes - 1), min_size=1)))
        need = -(-(length + nodes) // PAGE)
        sequences.append(Sequence(list(free[:need]), length, parents, rows))
        free = free[need:]
    return sequences


def pool(kv_heads: int, size: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn((SLOTS, kv_heads, size), generator=generator)
    return keys.to(dtype), torch.randn(keys.shape, generator=generator).to(dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=30)
@given(
    heads=HEADS,
    size=SIZES,
    sequences=passes(),
    sharpness=st.sampled_from((0.1, 1.0, 30.0)),
    window=WINDOWS,
    cap=CAPS,
)
def test_rows_agree_with_float64(
    path: str,
    dtype: torch.dtype,
    heads: tuple[int, int],
    size: int,
    sequences: list[Sequence],
    sharpness: float,
    window: int,
    cap: float,
) -> None:
    keys, values = pool(heads[1], size, dtype, seed=0)
    rows = [(s, node) for s in sequences for node in s.rows]
    q = torch.randn((len(rows), heads[0], size), generator=torch.Generator().manual_seed(1)) * sharpness
    with on_path(path):
        out = attend(sequences, q, keys, values, window, cap)
    # a float32 score is rounded in proportion to its size, and its exponential with it
    tolerance = 2e-5 * max(1.0, sharpness / 10)
    for row, (sequence, node) in enumerate(rows):
        slots = sequence.keys(node, window)
        assert (out[row] - expected(q[row], keys[slots], values[slots], cap)).abs().max() < tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=60)
@given(heads=HEADS, size=SIZES, sequences=passes(), window=WINDOWS, cap=CAPS, data=st.data())
def test_a_row_has_the_same_bits_alone(
    dtype: torch.dtype,
    heads: tuple[int, int],
    size: int,
    sequences: list[Sequence],
    window: int,
    cap: float,
    data: st.DataObject,
) -> None:
    """Other rows, the tree, slots, what is committed already, threads and vector width change nothing, and
    neither does what lies before its window."""
    keys, values = pool(heads[1], size, dtype, seed=2)
    rows = [(s, node) for s in sequences for node in s.rows]
    q = torch.randn((len(rows), heads[0], size), generator=torch.Generator().manual_seed(3)) * 4
    seen = sorted({slot for s, node in rows for slot in s.keys(node, window)})
    poisoned = torch.ones(SLOTS, dtype=torch.bool)
    poisoned[seen] = False
    keys[poisoned], values[poisoned] = torch.nan, torch.nan  # nobody may read what isn't a row's own
    before = threads()
    set_threads(data.draw(st.integers(1, 3)))
    out = attend(sequences, q, keys, values, window, cap)
    set_threads(before)
    row = data.draw(st.integers(0, len(rows) - 1))
    sequence, node = rows[row]
    slots, length = sequence.keys(node, window), len(sequence.keys(node))
    # the same keys elsewhere, all but the last committed, the rest of the memory NaN
    pages = list(data.draw(st.permutations(range(SLOTS // PAGE))))
    alone = Sequence(pages, length - 1, [-1], [0])
    moved_keys, moved_values = torch.full_like(keys, torch.nan), torch.full_like(values, torch.nan)
    where = [alone.slot(position) for position in range(length - len(slots), length)]
    moved_keys[where], moved_values[where] = keys[slots], values[slots]
    for path in PATHS:
        with on_path(path):
            one = attend([alone], q[row : row + 1], moved_keys, moved_values, window, cap)[0]
        assert torch.equal(one, out[row]), path


def test_a_nan_reaches_its_own_row_only() -> None:
    keys, values = pool(2, 16, torch.float32, seed=4)
    chain = Sequence([0, 1, 2], 100, [-1, 0, 1, 2], [0, 1, 2, 3])
    q = torch.randn((4, 4, 16), generator=torch.Generator().manual_seed(5))
    clean = attend([chain], q, keys, values)
    keys[chain.slot(102), 0] = torch.nan
    out = attend([chain], q, keys, values)
    assert torch.equal(out[:2], clean[:2])
    assert torch.equal(out[2:, 2:], clean[2:, 2:])  # the other K/V head
    assert bool(out[2:, :2].isnan().all())


def test_write_rounds_as_pytorch_does() -> None:
    values = torch.randn((3, 20), generator=torch.Generator().manual_seed(6)) * 1e3
    values[0, :4] = torch.tensor([torch.nan, torch.inf, 1.00390625, 1.01171875])  # NaN, infinity, two ties
    for path in PATHS:
        for dtype in DTYPES:
            keys, others = torch.zeros((8, 3, 20), dtype=dtype), torch.zeros((8, 3, 20), dtype=dtype)
            k, v = values, -values
            addresses = (t.data_ptr() for t in (k, v))
            half = dtype == torch.bfloat16
            with on_path(path):
                extension.write(keys.data_ptr(), others.data_ptr(), half, 3, 20, 5, *addresses)
            assert torch.equal(keys[5].nan_to_num(7.0), values.to(dtype).nan_to_num(7.0))
            assert torch.equal(others[5].nan_to_num(7.0), (-values).to(dtype).nan_to_num(7.0))
            assert not keys[4].any()
            assert not keys[6].any()


def test_rows_stand_where_their_ancestors_and_the_base_put_them() -> None:
    """Two siblings have one position; a base moves all."""
    tree = [-1, 0, 0, 1]
    assert extension.Plan([([0], 3, tree, [0, 1, 2], 0)]).positions == 5
    assert extension.Plan([([0], 3, tree, [3], 0)]).positions == 6
    assert extension.Plan([([0], 3, tree, [3], 40), ([1], 2, [-1], [0], 0)]).positions == 46
    cache = tiny_model(1).allocate(8)
    cache.add([-1, 0, 0, 1])
    cache.keep([0])
    cache.add([-1, 0, 0, 1])
    assert Share(cache, [1, 2, 3], 7).positions() == [9, 9, 10]


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (([0], 64, [-1], [0], 0), "pages"),
        (([-1], 3, [-1], [0], 0), "negative"),
        (([0], 3, [0], [0], 0), "parent"),
        (([0], 3, [-1], [1], 0), "unknown"),
        (([0], 3, [-1], [0], -1), "positions"),
    ],
)
def test_plans_that_cannot_be(share: tuple[list[int], int, list[int], list[int], int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extension.Plan([share])
