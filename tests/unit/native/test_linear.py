"""Products with packed weights: right, and the same bits whatever stands beside a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taslak import native
from taslak.native import Packed, gated, linear, linear_many
from tests.unit.native.paths import PATHS
from tests.unit.native.paths import extension as _native

GROUP = 32


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator) * 2 - 1


def codes4(generator: torch.Generator, n: int, k: int) -> Tensor:
    return torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)


def make_bfloat16(g: torch.Generator, n: int, k: int) -> Packed:
    return Packed.bfloat16(uniform(g, n, k))


def make_int8(g: torch.Generator, n: int, k: int) -> Packed:
    return Packed.int8(uniform(g, n, k))


def make_int8_float32(g: torch.Generator, n: int, k: int) -> Packed:
    codes = torch.randint(-128, 128, (n, k), generator=g).to(torch.int8)
    return Packed.int8_exact(codes, uniform(g, n, k // GROUP) / 99)


def make_q4_0(g: torch.Generator, n: int, k: int) -> Packed:
    scales = (uniform(g, n, k // GROUP) / 10).half()
    return Packed.int4(codes4(g, n, k), scales, -8 * scales.float())


def make_int4_float32(g: torch.Generator, n: int, k: int) -> Packed:
    return Packed.int4(codes4(g, n, k), uniform(g, n, k // GROUP) / 9, uniform(g, n, k // GROUP))


def make_q4_k(g: torch.Generator, n: int, k: int) -> Packed:
    d, dmin = (uniform(g, n, k // 256).half() / 100 for _ in range(2))
    scales, minima = (torch.randint(0, 64, (n, k // GROUP), generator=g, dtype=torch.uint8) for _ in range(2))
    return Packed.int4_factors(codes4(g, n, k), d, dmin, scales, minima)


MAKERS: dict[str, Callable[[torch.Generator, int, int], Packed]] = {
    "bfloat16": make_bfloat16,
    "int8": make_int8,
    "int8-float32": make_int8_float32,
    "int4": make_q4_0,
    "int4-float32": make_int4_float32,
    "int4-factors": make_q4_k,
}
GRANULES = {"bfloat16": 1, "int4-factors": 256}


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    threads, path = native.threads(), _native.path()
    yield
    native.set_threads(threads)
    _native.use(path)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    _native.use(request.param)
    return str(request.param)


def quantised(x: Tensor) -> Tensor:
    """What the kernels make of activations, by the definition. Float64[R, K]."""
    groups = x.unflatten(1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(amax > 1e-30, 127.0 / amax, torch.zeros(()))
    return ((groups * inverse).round() * (amax / 127.0).double()).flatten(1)


def expected(x: Tensor, packed: Packed) -> Tensor:
    """Float64[R, N]."""
    seen = x.double() if packed.kind == "bfloat16" else quantised(x)
    return seen @ packed.dequantised().double().t()


def tolerance(x: Tensor, packed: Packed) -> Tensor:
    """What float32 sums in order may be off by, per output."""
    return (x.abs() @ packed.dequantised().abs().t()).double() * 1e-5 + 1e-30


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 256), (33, 512), (50, 1536), (97, 768)])
def test_products_are_right(kind: str, n: int, k: int, path: str) -> None:
    g = torch.Generator().manual_seed(n * k)
    packed = MAKERS[kind](g, n, k)
    assert packed.kind == kind
    x = uniform(g, 11, k)
    error = (linear(x, packed) - expected(x, packed)).abs()
    assert bool((error <= tolerance(x, packed)).all())


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (31, 63), (65, 129), (40, 577)])
def test_bfloat16_takes_any_k(n: int, k: int, path: str) -> None:
    g = torch.Generator().manual_seed(k)
    packed, x = make_bfloat16(g, n, k), uniform(g, 9, k)
    assert bool(((linear(x, packed) - expected(x, packed)).abs() <= tolerance(x, packed)).all())


@settings(max_examples=60)
@given(st.data())
def test_a_rows_bits_depend_on_the_row_alone(data: st.DataObject) -> None:
    """Not on how many rows there are, its place, the others, threads, alignment or the path."""
    kind = data.draw(st.sampled_from(list(MAKERS)))
    granule = GRANULES.get(kind, GROUP)
    n = data.draw(st.integers(1, 120))
    k = granule * data.draw(st.integers(1, 700 // granule))
    rows = data.draw(st.integers(1, 40))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    packed = MAKERS[kind](g, n, k)
    x = uniform(g, rows, k) * torch.exp(4 * uniform(g, rows, 1))
    native.set_threads(1)
    alone = torch.cat([linear(row[None], packed) for row in x])

    native.set_threads(data.draw(st.integers(1, 4)))
    order = torch.randperm(rows, generator=g)
    assert torch.equal(linear(x[order], packed), alone[order])
    start = data.draw(st.integers(0, rows - 1))
    shift = data.draw(st.integers(1, 7))
    moved = torch.empty(rows * (k + shift) + shift)[shift:].view(rows, k + shift)[:, :k]
    moved.copy_(x)
    assert torch.equal(linear(moved[start:], packed), alone[start:])
    elsewhere = torch.empty(packed.nbytes + shift, dtype=torch.uint8)[shift:]
    elsewhere.copy_(packed.buffer)
    again = Packed.from_buffer(packed.kind, packed.shape, elsewhere)
    assert torch.equal(linear(x, again), alone)
    for path in PATHS:
        _native.use(path)
        assert torch.equal(linear(x[start:], packed), alone[start:])
    _native.use(PATHS[0])


@pytest.mark.parametrize("kind", MAKERS)
def test_a_long_prefill_is_the_same_rows(kind: str) -> None:
    g = torch.Generator().manual_seed(4)
    packed, x = MAKERS[kind](g, 150, 768), uniform(g, 203, 768)
    native.set_threads(3)
    whole = linear(x, packed)
    native.set_threads(1)
    assert torch.equal(whole, torch.cat([linear(row[None], packed) for row in x]))


@pytest.mark.parametrize("kind", MAKERS)
def test_fused_forms_are_the_plain_ones(kind: str, path: str) -> None:
    g = torch.Generator().manual_seed(5)
    a, b = (MAKERS[kind](g, 70, 256) for _ in range(2))
    bias, other_bias = uniform(g, 70), uniform(g, 70)
    x, residual = uniform(g, 13, 256), uniform(g, 13, 70)
    plain, other = linear(x, a), linear(x, b)
    assert torch.equal(linear(x, a, bias), plain + bias)
    assert torch.equal(linear(x, a, bias, residual=residual), plain + bias + residual)
    in_place = residual.clone()
    assert linear(x, a, out=in_place, residual=in_place) is in_place
    assert torch.equal(in_place, plain + residual)
    many = linear_many(x, [a, b, make_bfloat16(g, 20, 256)], [bias, None, None])
    assert torch.equal(many[0], plain + bias)
    assert torch.equal(many[1], other)
    both = gated(x, a, b, bias, other_bias)
    want = torch.nn.functional.silu((plain + bias).double()) * (other + other_bias)
    torch.testing.assert_close(both.double(), want, rtol=1e-6, atol=1e-7)
    assert torch.equal(gated(x[4:5], a, b, bias, other_bias), both[4:5])


def test_gate_and_up_of_two_kinds() -> None:
    g = torch.Generator().manual_seed(6)
    gate, up, x = make_int8(g, 40, 256), make_q4_k(g, 40, 256), uniform(g, 5, 256)
    want = torch.nn.functional.silu(linear(x, gate)) * linear(x, up)
    torch.testing.assert_close(gated(x, gate, up), want, rtol=1e-5, atol=1e-6)


def test_own_int8_is_close_and_its_largest_weights_fit() -> None:
    g = torch.Generator().manual_seed(7)
    weight = uniform(g, 64, 256) * torch.logspace(-7, 3, 64)[:, None]
    weight[3] = 0
    error = (Packed.int8(weight).dequantised() - weight).unflatten(1, (-1, GROUP)).abs().amax(-1)
    step = weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 127
    assert bool((error <= step * 0.502 + 2.0**-25).all())


def test_int4_is_off_by_less_than_the_whole_range_would_be() -> None:
    g = torch.Generator().manual_seed(7)
    weight = torch.randn(20, 320, generator=g) * torch.logspace(-4, 1, 20)[:, None]
    groups = weight.unflatten(1, (-1, GROUP))
    step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
    low = groups.amin(-1, keepdim=True)
    plain = (((groups - low) / step).round() * step + low - groups).square().sum()
    off = (Packed.int4_rounded(weight).dequantised() - weight).square().sum()
    assert 0.5 * plain < off < 0.97 * plain


@given(
    st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=2),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_int4_keeps_two_values_of_a_group(values: list[float], which: list[bool]) -> None:
    weight = torch.tensor([[values[at] if len(values) > 1 else values[0] for at in map(int, which)]])
    packed = Packed.int4_rounded(weight).dequantised()
    assert packed.isfinite().all()
    # scale and minimum are float16
    assert torch.allclose(packed, weight, atol=2e-3 * float(weight.abs().max()) + 1e-6)


def test_int4_keeps_ggufs_numbers_exactly() -> None:
    g = torch.Generator().manual_seed(8)
    n, k = 20, 512
    codes = codes4(g, n, k)
    d, dmin = (uniform(g, n, k // 256).half() for _ in range(2))
    scales, minima = (torch.randint(0, 64, (n, k // GROUP), generator=g, dtype=torch.uint8) for _ in range(2))
    factors = Packed.int4_factors(codes, d, dmin, scales, minima)
    scale = d.float().repeat_interleave(8, 1) * scales
    minimum = -(dmin.float().repeat_interleave(8, 1) * minima)
    wide = Packed.int4(codes, scale, minimum)
    assert wide.kind == "int4-float32"
    assert torch.equal(factors.dequantised(), wide.dequantised())
    spread = (t.repeat_interleave(GROUP, 1).double() for t in (scale, minimum))
    assert torch.equal(factors.dequantised(), (next(spread) * codes + next(spread)).float())
    x = uniform(g, 5, k)
    assert torch.equal(linear(x, factors), linear(x, wide))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_number_that_is_none_spoils_its_row_alone(kind: str, bad: float, path: str) -> None:
    g = torch.Generator().manual_seed(9)
    packed, x = MAKERS[kind](g, 20, 256), uniform(g, 6, 256)
    clean = linear(x, packed)
    x[2, 77] = bad
    spoilt = linear(x, packed)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(spoilt[others], clean[others])
    assert not bool(spoilt[2].isfinite().any())


def test_zeros_and_tiny_activations_give_zeros(path: str) -> None:
    g = torch.Generator().manual_seed(10)
    for kind, make in MAKERS.items():
        packed, x = make(g, 20, 256), torch.zeros(3, 256)
        assert torch.equal(linear(x, packed), torch.zeros(3, 20)), kind
        x[1] = 1e-38
        assert bool(linear(x, packed).isfinite().all()), kind


def test_no_rows_give_no_rows() -> None:
    packed = make_int8(torch.Generator().manual_seed(11), 20, 64)
    assert linear(torch.empty(0, 64), packed).shape == (0, 20)


def test_what_does_not_fit_is_refused() -> None:
    g = torch.Generator().manual_seed(12)
    packed = make_int8(g, 20, 64)
    with pytest.raises(ValueError, match="multiple of 32"):
        Packed.int8(uniform(g, 4, 33))
    with pytest.raises(ValueError, match="multiple of 256"):
        make_q4_k(g, 4, 288)
    with pytest.raises(ValueError, match="0 … 15"):
        Packed.int4(torch.full((1, 32), 16, dtype=torch.uint8), torch.ones(1, 1), torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"x is torch.float32 \[2, 32\]"):
        linear(uniform(g, 2, 32), packed)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        linear(uniform(g, 2, 64).double(), packed)
    with pytest.raises(ValueError, match="gaps between its columns"):
        linear(uniform(g, 64, 2).t(), packed)
    with pytest.raises(ValueError, match="bias is"):
        linear(uniform(g, 2, 64), packed, torch.zeros(19))
    with pytest.raises(ValueError, match="out is"):
        linear(uniform(g, 2, 64), packed, out=torch.zeros(2, 19))
    with pytest.raises(ValueError, match="buffer is"):
        Packed.from_buffer("int8", (20, 64), packed.buffer[1:])
    with pytest.raises(ValueError, match="kind is 'int3'"):
        Packed.from_buffer("int3", (20, 64), packed.buffer)


def test_a_stored_buffer_is_used_in_place() -> None:
    packed = make_int8(torch.Generator().manual_seed(13), 20, 64)
    again = Packed.from_buffer(packed.kind, packed.shape, packed.buffer)
    assert again.buffer.data_ptr() == packed.buffer.data_ptr()
    assert torch.equal(again.dequantised(), packed.dequantised())
    assert again.nbytes == packed.nbytes


def test_large_memory_is_whole_and_aligned() -> None:
    for nbytes in (10, 3 << 20, (4 << 20) + 77):
        block = native.allocate(nbytes)
        block.fill_(7)
        assert block.shape == (nbytes,)
        assert int(block.sum(dtype=torch.int64)) == 7 * nbytes


def test_the_description_names_path_and_threads() -> None:
    native.set_threads(2)
    if native.available():
        _native.use("avx2")
        assert native.describe() == "native AVX2, 2 threads"
    else:
        assert native.describe().startswith("PyTorch")
