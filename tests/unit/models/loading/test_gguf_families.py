"""GGUF files of every family that has an architecture there: converted, and packed for the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from taslak import native
from taslak.errors import CheckpointError
from taslak.models.families import ARCHITECTURES
from taslak.models.loading.converted import convert
from taslak.models.loading.gguf import GGUFModel
from taslak.models.pretrained import load_pretrained
from taslak.models.target import chain_rows
from tests.support.families import CASES, ours, tiny_transformers
from tests.support.family_gguf import ARCHITECTURES as WRITTEN
from tests.support.family_gguf import write_family_gguf

IDS = list(range(1, 31))
"""Past the window of those that slide."""

CHANGES: dict[str, dict[str, Any]] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6, "num_hidden_layers": 6},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 4},
}
"""What a GGUF doesn't say, as llama.cpp takes it."""
NAMES = [*WRITTEN, "phi3-window", "phi3-partial", "phi3-longrope"]


def model_of(case: str, wide: bool = True) -> Any:
    wider = {"hidden_size": 64, "intermediate_size": 96} if CASES[case].usual else {"n_embd": 64}
    return tiny_transformers(case, **{**(wider if wide else {}), **CHANGES.get(case, {})})


def test_every_architecture_is_written_here() -> None:
    assert {family.model_type for family in ARCHITECTURES.values()} == set(WRITTEN)


@pytest.mark.parametrize("case", NAMES)
def test_a_converted_model_is_the_original_in_transformers_and_here(case: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    original = model_of(case, wide=False)
    path = write_family_gguf(tmp_path / "model.gguf", original)
    again = AutoModelForCausalLM.from_pretrained(convert(path, torch.float32))
    assert type(again) is type(original)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        expected = original(ids).logits
        assert torch.equal(again(ids).logits, expected)
    loaded = load_pretrained(str(path), dtype="float32").decoder
    logits = loaded.forward([chain_rows(loaded.allocate(40), IDS, len(IDS))]).logits
    assert (logits - expected[0]).abs().max() < 1e-4


@pytest.mark.skipif(not native.available(), reason="needs the native kernels")
@pytest.mark.parametrize(("stored", "dtype"), [("F32", "bfloat16"), ("Q8_0", "int8"), ("Q4_0", "int4")])
@pytest.mark.parametrize("case", [case for case in NAMES if case != "phi3-longrope"])
def test_a_packed_model_has_the_weights_of_the_file(
    case: str, stored: str, dtype: str, tmp_path: Path
) -> None:
    original = model_of(case)
    path = write_family_gguf(tmp_path / "model.gguf", original, stored)
    packed, wide = load_pretrained(str(path), dtype=dtype), load_pretrained(str(path), dtype="float32")
    assert (packed.dtype, packed.path) == (dtype, "native")
    got, expected = (
        m.decoder.forward([chain_rows(m.decoder.allocate(40), IDS, len(IDS))]).logits for m in (packed, wide)
    )
    assert (got - expected).norm() < (0.02 if dtype == "bfloat16" else 0.1) * expected.norm()


@pytest.mark.skipif(not native.available(), reason="needs the native kernels")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("case", ["gemma3_text", "phi3", "gpt_neox", "gpt2", "olmo2"])
def test_a_folder_is_packed_under_our_names(case: str, dtype: str, tmp_path: Path) -> None:
    """Fused, turned, tied and offset tensors of a folder of safetensors."""
    original = model_of(case)
    original.save_pretrained(tmp_path / case)
    folder = tmp_path / case
    converted = convert(write_family_gguf(tmp_path / "model.gguf", original), torch.float32)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((converted / name).read_bytes())
    packed, wide = load_pretrained(str(folder), dtype=dtype), load_pretrained(str(folder), dtype="float32")
    got, expected = (
        m.decoder.forward([chain_rows(m.decoder.allocate(40), IDS, len(IDS))]).logits for m in (packed, wide)
    )
    with torch.no_grad():
        assert (expected - original(torch.tensor([IDS])).logits[0]).abs().max() < 1e-4
    assert (got - expected).norm() < (0.02 if dtype == "bfloat16" else 0.1) * expected.norm()


def test_norms_of_gemma_lose_the_one_they_were_given(tmp_path: Path) -> None:
    original = model_of("gemma3_text", wide=False)
    model = GGUFModel(write_family_gguf(tmp_path / "model.gguf", original))
    norms = {t.name: t for t in model.stored() if t.name.endswith("norm.weight")}
    assert len(norms) == 6 * 6 + 1
    for name, tensor in norms.items():
        values = torch.frombuffer(bytearray(b"".join(tensor.chunks(torch.float32))), dtype=torch.float32)
        assert torch.allclose(values, original.state_dict()[name], atol=1e-7)
    _, weights = ours(original)
    assert weights["model.layers.0.input_layernorm.weight"].dtype == torch.float32


def test_c17_state_space_architectures_are_refused_with_the_reason(tmp_path: Path) -> None:
    import gguf

    for name, reason in (("mamba2", "keeps a running state"), ("qwen3moe", "mixture of experts")):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", name)
        writer.add_block_count(1)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(CheckpointError, match=reason):
            GGUFModel(tmp_path / f"{name}.gguf").config()
