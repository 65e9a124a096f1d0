"""The native draw against `Distribution`: the same ids, always."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taslak.core.noise import Stream, address, gumbel
from taslak.core.sampling import Distribution, Sampling, distribution
from taslak.native import set_threads, threads
from taslak.native.draw import draw_row, draw_support, rank_rows
from tests.unit.native.paths import PATHS, on_path

KEYS = st.integers(0, 2**64 - 1)
TEMPERATURES = st.sampled_from((1e-5, 0.01, 0.3, 0.7, 1.0, 1.5, 4.0, 100.0, 1e38))
SPREADS = st.sampled_from((0.0, 0.01, 1.0, 3.0, 10.0, 1e4, 1e37))


def logits_of(seed: int, size: int, spread: float) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 2**31),
    spread=SPREADS,
    temperature=TEMPERATURES,
    key=KEYS,
    position=st.integers(0, 2**40),
    stream=st.sampled_from(Stream),
    banned=st.lists(st.integers(0, 2999), max_size=20),
    k=st.integers(1, 12),
    count=st.sampled_from((1, 2, 3)),
)
def test_a_row_gives_the_ids_that_the_distribution_gives(
    path: str,
    size: int,
    seed: int,
    spread: float,
    temperature: float,
    key: int,
    position: int,
    stream: Stream,
    banned: list[int],
    k: int,
    count: int,
) -> None:
    logits = logits_of(seed, size, spread)
    logits[[token for token in banned if token < size - 1]] = -math.inf
    p = distribution(logits, [0], (), 1, Sampling(temperature=temperature))
    state = address(key, stream, position)
    before = threads()
    set_threads(count)
    with on_path(path):
        assert draw_row(logits, temperature, state)[0] == [p.draw(key, stream, position)]
        top, _ = p.top(k, key, stream, position)
        assert draw_row(logits, temperature, state, k)[0] == top
        assert draw_support(p.ids, p.z, state, k) == top
    set_threads(before)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), key=KEYS, k=st.integers(1, 40), values=st.integers(1, 4))
def test_ties_go_to_the_lower_id(path: str, seed: int, key: int, k: int, values: int) -> None:
    """Scores so large that noise vanishes in their rounding: whole groups are tied."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(5000, generator=generator)[:200].sort().values
    z = -1e30 * torch.randint(0, values, (200,), generator=generator).double()
    p = Distribution(ids, z)
    with on_path(path):
        assert draw_support(ids, z, address(key, Stream.TOKEN, 3), k) == p.top(k, key, Stream.TOKEN, 3)[0]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), key=KEYS, spread=SPREADS, temperature=TEMPERATURES)
@example(seed=0, key=0, spread=0.0, temperature=1.0)
def test_large_vocabularies(path: str, seed: int, key: int, spread: float, temperature: float) -> None:
    logits = logits_of(seed, 151_936, spread)
    p = distribution(logits, [0], (), 1, Sampling(temperature=temperature))
    with on_path(path):
        for position in range(3):
            state = address(key, Stream.TOKEN, position)
            assert draw_row(logits, temperature, state)[0] == [p.draw(key, Stream.TOKEN, position)]
            assert draw_row(logits, temperature, state, 5)[0] == p.top(5, key, Stream.TOKEN, position)[0]


def test_extreme_noise_is_found() -> None:
    """The ids with the largest and smallest uniforms of a large range, where the bound is loosest."""
    key, position = 12345, 7
    ids = torch.arange(4_000_000)
    g = gumbel(key, Stream.TOKEN, position, ids)
    state = address(key, Stream.TOKEN, position)
    best = int(g.argmax())
    z = torch.zeros(ids.numel(), dtype=torch.float64)
    assert draw_support(ids, z, state, 50) == Distribution(ids, z).top(50, key, Stream.TOKEN, position)[0]
    z = torch.full_like(z, -float(g.max()) - 3.0)
    z[best] = 0.0
    assert draw_support(ids, z, state) == [best]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 9, 99])
def test_rows_that_no_token_can_be_drawn_from(path: str, bad: float, place: int) -> None:
    logits = torch.zeros(100)
    logits[place] = bad
    with on_path(path):
        for temperature in (1.0, 0.0):
            with pytest.raises(ValueError, match="the logits hold"):
                draw_row(logits, temperature, 1)
            with pytest.raises(ValueError, match="banned"):
                draw_row(torch.full((100,), -math.inf), temperature, 1)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=100)
@given(
    size=st.integers(1, 2000),
    seed=st.integers(0, 2**31),
    spread=SPREADS,
    temperature=TEMPERATURES,
    key=KEYS,
    k=st.integers(1, 20),
)
def test_a_row_of_some_tokens_gives_their_ids_and_scores(
    path: str, size: int, seed: int, spread: float, temperature: float, key: int, k: int
) -> None:
    logits = logits_of(seed, size, spread)
    ids = torch.randperm(50_000, generator=torch.Generator().manual_seed(seed))[:size].sort().values
    inner = distribution(logits, [0], (), 1, Sampling(temperature=temperature))
    p = Distribution(ids[inner.ids], inner.z)
    noisy = dict(zip(p.ids.tolist(), (p.z + gumbel(key, Stream.TOKEN, 4, p.ids)).tolist(), strict=True))
    with on_path(path):
        found, scores = draw_row(logits, temperature, address(key, Stream.TOKEN, 4), k, ids)
    assert found == p.top(k, key, Stream.TOKEN, 4)[0]
    assert scores == pytest.approx([noisy[id] for id in found], rel=1e-12)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=100)
@given(
    size=st.integers(1, 3000),
    rows=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from((0.0, 0.01, 1.0, 10.0, 1e4)),
    values=st.sampled_from((0, 2, 5)),
    k=st.integers(0, 12),
)
def test_ranking_gives_the_largest_and_their_softmax(
    path: str, size: int, rows: int, seed: int, spread: float, values: int, k: int
) -> None:
    logits = torch.stack([logits_of(seed + i, size, spread) for i in range(rows)])
    if values:  # ties: the lower index first
        logits = (logits.sign() * values).round()
    logits[:, size // 2 + 1 :: 3] = -math.inf
    with on_path(path):
        ranked = rank_rows(logits, k)
        at_zero = [draw_row(row, 0.0, 0, k)[0] if row.max() > -math.inf else [] for row in logits]
    assert at_zero == [indices for indices, _ in ranked]
    for row, (indices, shares) in zip(logits, ranked, strict=True):
        order = torch.sort(row, descending=True, stable=True).indices.tolist()
        assert indices == [i for i in order if row[i] > -math.inf][:k]
        assert shares == pytest.approx(torch.softmax(row.double(), 0)[indices].tolist(), rel=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_can_not_be_ranked_give_nothing(path: str, bad: float) -> None:
    logits = torch.zeros(3, 100)
    logits[0, 7] = bad
    logits[2] = -math.inf
    with on_path(path):
        ranked = rank_rows(logits, 2)
    assert ranked[0] == ranked[2] == ([], [])
    assert ranked[1][0] == [0, 1]
