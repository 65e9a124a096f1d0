"""GGUF files: every quantisation, settings, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from taslak.errors import CheckpointError
from taslak.models.loading.gguf import QUANTISATIONS, GGUFModel, llama3_factors
from taslak.models.loading.gguf_tensor import SourceTensor
from tests.unit.models.loading.builders import add_value, finish

Build = Callable[..., Any]
ROWS, COLUMNS = 6, 512


def quantised(name: str) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Random rows stored as `name`: [ROWS, row bytes or values]."""
    kind, random = gguf.GGMLQuantizationType[name], np.random.default_rng(0)
    if not name.endswith("_K"):
        values = random.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        return gguf.quants.quantize(values, kind), kind
    # The gguf package can't quantise to these: any bytes will do, but for the block's float16 scales.
    size, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS * COLUMNS // size, width), dtype=np.uint8)
    scales = random.uniform(-0.1, 0.1, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    if name == "Q6_K":
        blocks[:, -2:] = scales[:, :2]
    else:
        blocks[:, :4] = scales
    return blocks.reshape(ROWS, -1), kind


@pytest.mark.parametrize("name", QUANTISATIONS)
def test_every_quantisation_is_read_as_the_gguf_package_reads_it(name: str, monkeypatch) -> None:
    rows, kind = quantised(name)
    expected = gguf.dequantize(rows, kind).astype(np.float32)
    assert expected.shape == (ROWS, COLUMNS)
    assert np.isfinite(expected).all()
    assert expected.std() > 0.01
    monkeypatch.setattr("taslak.models.loading.gguf_tensor.CHUNK_ELEMENTS", COLUMNS * 2)  # three chunks
    tensor = SourceTensor("x", (ROWS, COLUMNS), rows, kind, None)
    chunks = [bytes(chunk) for chunk in tensor.chunks(torch.float32)]
    assert len(chunks) == 3
    assert b"".join(chunks) == expected.tobytes()
    halves = b"".join(bytes(chunk) for chunk in tensor.chunks(torch.bfloat16))
    rounded = torch.from_numpy(expected).to(torch.bfloat16)
    assert halves == rounded.view(torch.int16).numpy().tobytes()


def test_the_config_of_a_llama(tiny: Build, write_gguf: Build) -> None:
    config = GGUFModel(write_gguf(tiny(rms_norm_eps=1e-5))).config()
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5  # a float32 in the file
    assert config["num_key_value_heads"] == 2
    assert config["head_dim"] == 8
    assert not config["tie_word_embeddings"]
    assert "rope_scaling" not in config


def test_no_output_matrix_means_tied(tiny: Build, write_gguf: Build) -> None:
    model = GGUFModel(write_gguf(tiny("qwen2", tie_word_embeddings=True)))
    assert model.config()["tie_word_embeddings"]
    assert "lm_head.weight" not in [tensor.name for tensor in model.tensors()]


def test_linear_rope_scaling(tiny: Build, write_gguf: Build) -> None:
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = GGUFModel(write_gguf(tiny(), settings=settings)).config()
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_llama3_rope_scaling_is_recognised_by_its_factors(tiny: Build, write_gguf: Build) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = llama3_factors(8, 500000.0, 32.0)
    extra = {"rope_freqs.weight": factors.astype(np.float32)}
    scaling = GGUFModel(write_gguf(tiny(rope_theta=500000.0), extra=extra)).config()["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == 32.0
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, rope_theta=500000.0, rope_scaling=scaling)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** -(torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(plain / frequencies, torch.from_numpy(factors).float())


def refused(path: Path) -> str:
    def read() -> None:
        model = GGUFModel(path)
        model.config()
        list(model.tensors())

    with pytest.raises(CheckpointError) as caught:
        read()
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_not_supported_is_named(tiny: Build, write_gguf: Build) -> None:
    llama = tiny()
    assert "rotary scaling 'ntk'" in refused(write_gguf(llama, settings={"llama.rope.scaling.type": "ntk"}))
    odd = {"rope_freqs.weight": np.array([1, 2, 3, 5], dtype=np.float32)}
    assert "scaling other than Llama 3's" in refused(write_gguf(llama, extra=odd))
    assert "mixture of experts" in refused(write_gguf(llama, settings={"llama.expert_count": 8}))
    assert "sliding" in refused(write_gguf(llama, settings={"llama.attention.sliding_window": 64}))
    assert "rope.dimension_count" in refused(write_gguf(llama, settings={"llama.rope.dimension_count": 4}))
    assert "one piece of a split" in refused(write_gguf(llama, settings={"split.count": 3}))
    message = refused(write_gguf(llama, architecture="mamba"))
    assert "architecture 'mamba': it keeps a running state" in message
    assert "supported are: llama, qwen2" in message


def test_missing_and_unknown_tensors_are_named(tiny: Build, write_gguf: Build) -> None:
    llama = tiny()
    assert "no tensor blk.1.ffn_up.weight" in refused(write_gguf(llama, leave_out=("blk.1.ffn_up.weight",)))
    extra = {"blk.0.attn_q.bias": np.zeros(32, dtype=np.float32)}
    assert "has the tensor blk.0.attn_q.bias" in refused(write_gguf(llama, extra=extra))
    extra = {"blk.9.ffn_up.weight": np.zeros(32, dtype=np.float32)}
    assert "has the tensor blk.9.ffn_up.weight" in refused(write_gguf(llama, extra=extra))


def test_an_unsupported_quantisation_is_named(tmp_path: Path, tiny: Build, write_gguf: Build) -> None:
    extra = {"output.weight": np.zeros((4, 4), dtype=np.int32)}
    message = refused(write_gguf(tiny(), leave_out=("output.weight",), extra=extra))
    assert "output.weight is quantised as I32; supported are: F32, F16, BF16, Q8_0" in message


@pytest.mark.parametrize("keep", [0, 3, 20, 1000, -100])
def test_truncated_files(tiny: Build, write_gguf: Build, keep: int) -> None:
    path = write_gguf(tiny())
    path.write_bytes(path.read_bytes()[:keep])
    assert "not a whole GGUF file" in refused(path)


def test_something_else_entirely(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>404</html>" * 100)
    assert "not a whole GGUF file" in refused(path)


def test_a_file_without_settings(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_value(writer, "llama.block_count", 1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    finish(writer)
    assert "no setting llama.embedding_length" in refused(path)
