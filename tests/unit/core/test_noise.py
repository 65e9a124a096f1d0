"""Noise is a pure function of its address, uniform, and independent between addresses."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from taslak.core import noise
from taslak.core.noise import Stream, fresh_seed, gumbel, noise_key, uniform, uniform_at
from taslak.errors import OptionError

KEYS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**40)
IDS = st.integers(0, 2**31)
SIGNIFICANCE = 1e-4  # the noise is fixed, so these tests can't flake


def row(key: int = 1, stream: Stream = Stream.TOKEN, position: int = 0, count: int = 20_000) -> Tensor:
    return uniform(key, stream, position, torch.arange(count))


@given(KEYS, st.sampled_from(Stream), POSITIONS, st.lists(IDS, min_size=1, max_size=20))
def test_the_scalar_path_equals_the_tensor_path(
    key: int, stream: Stream, position: int, ids: list[int]
) -> None:
    scalars = [uniform_at(key, stream, position, i) for i in ids]
    assert uniform(key, stream, position, torch.tensor(ids)).tolist() == scalars


def test_values_never_change() -> None:
    """A seed's text is a promise: these change only with a major version."""
    assert noise_key(0) == 0xA706DD2F4D197E6F
    assert noise_key(42, choice=3) == 0x113E5DEC6F8FD8A8
    assert [uniform_at(1, stream, 2, 3).hex() for stream in Stream] == [
        "0x1.60ea91c83dcadp-1",
        "0x1.1ee575399525ap-2",
        "0x1.d1be4b2da5e00p-8",
        "0x1.95cf49fb38b1dp-1",
    ]
    assert gumbel(noise_key(42), Stream.TOKEN, 7, torch.tensor([0, 151_935])).tolist() == pytest.approx(
        [1.622267849091806, -0.40356629909388086], abs=1e-14
    )


def test_the_hash_is_the_published_splitmix64() -> None:
    assert noise._mix(noise._GOLDEN) == 0xE220A8397B1DCDAF  # its first output for seed 0


def test_an_exact_zero_stays_zero_for_accepting_and_is_lifted_for_logarithms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the address whose hash is zero: mix(0) = 0, so the state must cancel the id's increment
    monkeypatch.setattr(noise, "address", lambda *address: -noise._GOLDEN & noise._MASK)
    assert uniform_at(0, Stream.ACCEPT, 0, 0) == 0.0
    assert uniform(0, Stream.TOKEN, 0, torch.tensor([0])).tolist() == [2.0**-54]
    assert math.isfinite(float(gumbel(0, Stream.TOKEN, 0, torch.tensor([0]))))


def test_uniforms_have_53_bits_inside_the_open_interval() -> None:
    u = row(count=100_000)
    assert u.dtype == torch.float64
    assert float(u.min()) > 0.0
    assert float(u.max()) < 1.0
    steps = u * 2.0**53
    assert torch.equal(steps, steps.round())
    odd = (steps.long() & 1).double().mean()  # the last bit is used: a float32 uniform would leave it at 0
    assert abs(float(odd) - 0.5) < 0.01


@pytest.mark.parametrize("stream", Stream)
@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_uniformity_over_ids_and_over_positions(key: int, stream: Stream) -> None:
    over_ids = row(key, stream).numpy()
    over_positions = [uniform_at(key, stream, position, 5) for position in range(5_000)]
    over_keys = [uniform_at(noise_key(seed), stream, 3, 5) for seed in range(5_000)]
    for sample in (over_ids, over_positions, over_keys):
        assert stats.kstest(sample, "uniform").pvalue > SIGNIFICANCE


def test_every_bit_is_fair() -> None:
    bits = (row(count=100_000) * 2.0**53).long()
    for bit in range(53):
        ones = int(((bits >> bit) & 1).sum())
        assert stats.binomtest(ones, 100_000).pvalue > SIGNIFICANCE, bit


NEIGHBOURS = {
    "ids": lambda: (row()[:-1], row()[1:]),
    "positions": lambda: (row(position=10), row(position=11)),
    "keys": lambda: (row(key=10), row(key=11)),
    "seeds": lambda: (row(key=noise_key(0)), row(key=noise_key(1))),
    "choices": lambda: (row(key=noise_key(0, 0)), row(key=noise_key(0, 1))),
    "token-draft": lambda: (row(), row(stream=Stream.DRAFT)),
    "token-accept": lambda: (row(), row(stream=Stream.ACCEPT)),
    "token-residual": lambda: (row(), row(stream=Stream.RESIDUAL)),
    "draft-accept": lambda: (row(stream=Stream.DRAFT), row(stream=Stream.ACCEPT)),
    "draft-residual": lambda: (row(stream=Stream.DRAFT), row(stream=Stream.RESIDUAL)),
    "accept-residual": lambda: (row(stream=Stream.ACCEPT), row(stream=Stream.RESIDUAL)),
    "next-position-next-id": lambda: (row(position=4)[1:], row(position=5)[:-1]),
    "next-key-next-position": lambda: (row(key=5, position=4), row(key=4, position=5)),
}


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_neighbours_are_independent(pair: str) -> None:
    a, b = (x.numpy() for x in NEIGHBOURS[pair]())
    assert not (a == b).any()
    assert stats.pearsonr(a, b).pvalue > SIGNIFICANCE
    cells = torch.zeros(8, 8)
    cells.index_put_(
        (torch.tensor(a * 8).long(), torch.tensor(b * 8).long()), torch.ones(len(a)), accumulate=True
    )
    assert stats.chi2_contingency(cells.numpy()).pvalue > SIGNIFICANCE


def test_addresses_do_not_collide() -> None:
    seen = torch.cat(
        [row(key, stream, position, 500) for key in (1, 2, 3) for stream in Stream for position in range(20)]
    )
    assert seen.unique().numel() == seen.numel()


def test_gumbel_is_gumbel() -> None:
    g = gumbel(1, Stream.TOKEN, 0, torch.arange(20_000))
    assert stats.kstest(g.numpy(), "gumbel_r").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 31, 1000, 40_001])
def test_a_tokens_noise_does_not_depend_on_what_is_asked_for_beside_it(count: int) -> None:
    """Vectorised logarithms may round differently at the end of a tensor; a coupled draw must not."""
    whole = gumbel(3, Stream.TOKEN, 4, torch.arange(60_000))
    threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            for start in (0, 1, 2, 3, 7, 11_111):
                ids = torch.arange(start, start + count)
                assert torch.equal(gumbel(3, Stream.TOKEN, 4, ids), whole[start : start + count])
    finally:
        torch.set_num_threads(threads)


def test_ids_are_left_alone() -> None:
    ids = torch.arange(10)
    gumbel(1, Stream.TOKEN, 0, ids)
    assert torch.equal(ids, torch.arange(10))
    assert torch.equal(uniform(1, Stream.TOKEN, 0, ids.int()), uniform(1, Stream.TOKEN, 0, ids))


def test_c12_a_key_is_made_of_seed_and_choice_only() -> None:
    assert list(inspect.signature(noise_key).parameters) == ["seed", "choice"]
    for function in (uniform, uniform_at, gumbel):
        assert list(inspect.signature(function).parameters)[:3] == ["key", "stream", "position"]
    keys = {noise_key(seed, choice) for seed in range(100) for choice in range(100)}
    assert len(keys) == 10_000
    assert noise_key(7, 2) == noise_key(7, 2)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(OptionError, match=r"expected 0 … 2\*\*64"):
        noise_key(seed)


def test_the_widest_seeds_work() -> None:
    assert noise_key(0) != noise_key(2**64 - 1)


def test_fresh_seeds_are_legal_and_differ() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= noise_key(seed) < 2**64 for seed in seeds)
