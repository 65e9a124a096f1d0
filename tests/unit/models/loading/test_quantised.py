"""GGUF rows as packed weights: exact where the format allows, as close as eight bits elsewhere."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from taslak import native
from taslak.models.loading.gguf import QUANTISATIONS
from taslak.models.loading.quantised import own_dtype, pack_rows, pack_values, width
from tests.unit.models.loading.test_gguf_files import quantised

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native kernels")

EXACT = {
    "int4": {"Q4_0": "int4", "Q4_1": "int4", "Q4_K": "int4-factors", "Q5_0": "int8", "Q8_0": "int8"},
    "int8": {"Q4_0": "int8", "Q5_0": "int8", "Q8_0": "int8"},
    "bfloat16": {"BF16": "bfloat16"},
}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", QUANTISATIONS)
def test_every_quantisation_beside_the_gguf_package(name: str, dtype: str) -> None:
    rows, quantisation = quantised(name)
    expected = torch.from_numpy(np.require(gguf.dequantize(rows, quantisation), np.float32, ["C", "W"]))
    packed = pack_rows(rows, quantisation, dtype)
    assert packed.shape == tuple(expected.shape)
    error = (packed.dequantised() - expected).abs()
    if kind := EXACT[dtype].get(name):
        assert packed.kind == kind
        # scale · code + minimum is rounded once here, twice there
        assert (error <= 2**-22 * expected.abs().max()).all()
    elif packed.kind == "bfloat16":
        assert (error <= 2**-8 * expected.abs()).all()
    else:
        groups = expected.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)  # [N, K / 32, 1]
        assert packed.kind == "int8"
        assert (error.unflatten(1, (-1, 32)) <= groups / 127 * 0.51 + 2**-24).all()


def test_all_scales_and_minima_of_a_k_quant_are_read() -> None:
    """Each of the 16 six-bit numbers of a super-block alone, so that none can stand for another."""
    blocks = np.zeros((16, 144), np.uint8)
    blocks[:, :4] = np.array([1.0, 1.0], np.float16).view(np.uint8)
    blocks[:, 16:] = 0x21  # codes 1 and 2
    for i in range(8):
        for row, (field, at) in enumerate([("scale", i), ("minimum", 8 + i)]):
            number = blocks[2 * i + row]
            if i < 4:
                number[4 + i + (4 if field == "minimum" else 0)] = 37
            else:
                number[8 + i] = 37 & 15 if field == "scale" else (37 & 15) << 4
                number[4 + i - (4 if field == "scale" else 0)] = 37 >> 4 << 6
            assert at < 16
    quantisation = gguf.GGMLQuantizationType.Q4_K
    expected = gguf.dequantize(blocks, quantisation)
    assert (np.count_nonzero(expected, axis=1) == 32).all()
    packed = pack_rows(blocks, quantisation, "int4")
    assert torch.equal(packed.dequantised(), torch.from_numpy(expected))


def test_rows_that_do_not_fall_into_groups_stay_bfloat16() -> None:
    assert pack_values(torch.randn(4, 48), "int8").kind == "bfloat16"
    assert pack_values(torch.randn(4, 64), "int8").kind == "int8"


@pytest.mark.parametrize(
    ("matrix", "wide"),
    [
        ("model.layers.0.self_attn.v_proj.weight", True),
        ("model.layers.11.self_attn.v_proj.weight", True),
        ("model.layers.11.mlp.gate_proj.weight", True),
        ("model.layers.11.mlp.down_proj.weight", True),
        ("model.layers.11.self_attn.q_proj.weight", False),
        ("model.layers.1.mlp.up_proj.weight", False),
        ("model.layers.10.mlp.down_proj.weight", False),
        ("model.embed_tokens.weight", False),
        ("lm_head.weight", False),
    ],
)
def test_what_int8_keeps_in_bfloat16(matrix: str, wide: bool) -> None:
    assert width(matrix, "int8", 12) == ("bfloat16" if wide else "int8")
    assert [width(matrix, dtype, 12) for dtype in ("bfloat16", "int4")] == ["bfloat16", "int4"]


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (["Q4_K", "Q6_K"], "int4"),
        (["Q4_K", "Q5_0", "Q6_K", "Q8_0"], "int4"),
        (["Q4_0"], "int4"),
        (["Q5_K", "Q6_K"], "int8"),
        (["F16", "Q8_0"], "int8"),
        (["F32"], "bfloat16"),
        (["BF16"], "bfloat16"),
    ],
)
def test_a_files_own_width(stored: list[str], dtype: str) -> None:
    assert own_dtype(stored) == dtype
