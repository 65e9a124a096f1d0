"""Norms, rotary embedding, soft caps: right against float64, the same bits in any company and on any path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.models.rope import Rope
from taslak.models.rope_config import RopeConfig
from taslak.native import set_threads, threads
from taslak.native.build import extension
from tests.unit.native.paths import PATHS, on_path


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    rows, width = x.shape
    extension.rms_norm(x.data_ptr(), weight.data_ptr(), eps, rows, width, out.data_ptr())
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [R, heads, d]; cos, sin: [R, size]."""
    x = x.clone()
    addresses = (t.data_ptr() for t in (x, cos, sin))
    extension.rotate(*addresses, *x.shape, cos.shape[1])
    return x


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    width=st.one_of(st.integers(1, 100), st.sampled_from((576, 1536, 4096))),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from((1e-6, 1.0, 1e6)),
    count=st.integers(1, 3),
)
def test_norm(rows: int, width: int, seed: int, scale: float, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, width), generator=generator) * scale
    weight = torch.randn(width, generator=generator)
    before = threads()
    set_threads(count)
    out = norm(x, weight, 1e-5)
    set_threads(before)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.allclose(out.double(), expected, rtol=1e-6, atol=1e-30)
    row = seed % rows
    for path in PATHS:
        with on_path(path):
            assert torch.equal(norm(x[row : row + 1].clone(), weight, 1e-5)[0], out[row]), path


@settings(max_examples=40)
@given(rows=st.integers(1, 40), width=st.integers(1, 200), seed=st.integers(0, 2**31))
def test_layer_norm(rows: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, width), generator=generator) + 3.0
    weight, bias = torch.randn((2, width), generator=generator)

    def layer_norm(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        addresses = (t.data_ptr() for t in (x, weight, bias))
        extension.layer_norm(*addresses, 1e-5, *x.shape, out.data_ptr())
        return out

    out = layer_norm(x)
    wide = x.double()
    expected = torch.nn.functional.layer_norm(wide, (width,), weight.double(), bias.double(), 1e-5)
    assert (out - expected).abs().max() < 2e-5  # a row of nearly equal numbers loses some
    row = seed % rows
    for path in PATHS:
        with on_path(path):
            assert torch.equal(layer_norm(x[row : row + 1].clone())[0], out[row]), path


@settings(max_examples=40)
@given(
    count=st.one_of(st.integers(1, 70), st.sampled_from((16384, 40_000))),
    scale=st.sampled_from((1.0, 0.125, 7.0)),
    cap=st.sampled_from((0.0, 5.0, 30.0)),
    seed=st.integers(0, 2**31),
)
def test_scale_and_cap(count: int, scale: float, cap: float, seed: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 20
    wide = x.double() * scale
    expected = torch.tanh(wide / cap) * cap if cap else wide
    for path in PATHS:
        got, one = x.clone(), x[seed % count : seed % count + 1].clone()
        with on_path(path):
            extension.scale_and_cap(got.data_ptr(), count, scale, cap)
            extension.scale_and_cap(one.data_ptr(), 1, scale, cap)
        assert torch.allclose(got.double(), expected, rtol=1e-6, atol=1e-5)
        assert one[0] == got[seed % count]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    heads=st.integers(1, 12),
    half=st.sampled_from((4, 5, 8, 20, 32, 64, 128)),
    rest=st.sampled_from((0, 6, 8)),
    seed=st.integers(0, 2**31),
)
def test_rotation(rows: int, heads: int, half: int, rest: int, seed: int) -> None:
    """Of whole heads, and of their first dimensions only (partial rotary)."""
    size = 2 * half
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, heads, size + rest), generator=generator)
    positions = torch.randint(0, 3000, (rows,), generator=generator)
    rope = Rope(RopeConfig(), size, torch.float32, torch.device("cpu"))
    cos, sin = (t[:, 0].contiguous() for t in rope.at(positions))
    out = rotate(x, cos, sin)
    low, high = x[..., :half].double(), x[..., half:size].double()
    c, s = cos[:, None, :half].double(), sin[:, None, half:].double()
    expected = torch.cat((low * c - high * s, high * c + low * s), dim=-1)
    assert (out[..., :size] - expected).abs().max() < 1e-6
    assert torch.equal(out[..., size:], x[..., size:])
    row = seed % rows
    for path in PATHS:
        with on_path(path):
            one = rotate(x[row : row + 1], cos[row : row + 1].clone(), sin[row : row + 1].clone())
        assert torch.equal(one[0], out[row]), path


@pytest.mark.parametrize("path", PATHS)
def test_a_nan_stays_in_its_row(path: str) -> None:
    x = torch.ones((3, 24))
    x[1, 5] = torch.nan
    with on_path(path):
        out = norm(x, torch.ones(24), 1e-5)
    assert bool(out[1].isnan().all())
    assert not out[[0, 2]].isnan().any()
