"""The decoder against transformers, and against itself at other widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.target import chain_rows
from tests.support.tiny import tiny_model
from tests.support.widths import check_any_company, check_resumed_rows, check_tree

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-bias": {"attention_bias": True, "mlp_bias": True},
    "llama-mha": {"num_key_value_heads": 4},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "llama-head-size": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True},
}


def reference_model(case: str) -> Any:
    """A tiny random transformers model of the family."""
    import transformers

    family = case.split("-")[0].removesuffix("3")
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[family]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        **{"num_key_value_heads": 2, "max_position_embeddings": 256, **FAMILIES[case]},
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms too: zeros and ones would hide a slip
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@pytest.mark.parametrize("case", FAMILIES)
def test_logits_agree_with_transformers(case: str, exact: bool) -> None:
    reference = reference_model(case)
    config = DecoderConfig.from_hf(reference.config.to_dict())
    weights = {k: v.detach() for k, v in reference.state_dict().items()}
    decoder = Decoder(config, weights, exact=exact)
    ids = torch.randint(0, 61, (1, 150), generator=torch.Generator().manual_seed(1))
    expected = reference(ids, output_hidden_states=True)
    cache = decoder.allocate(150)
    output = decoder.forward([chain_rows(cache, ids[0].tolist(), 150)], capture=["layer.0", "final_norm"])
    assert (output.logits - expected.logits[0]).abs().max() < 1e-4
    assert (output.features["layer.0"] - expected.hidden_states[1][0]).abs().max() < 1e-4
    assert (output.features["final_norm"] - expected.hidden_states[3][0]).abs().max() < 1e-4


EXACT = {dtype: tiny_model(3, dtype=dtype, layers=2) for dtype in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_exact_rows_are_bit_identical_in_any_company(dtype: torch.dtype, data: st.DataObject) -> None:
    check_any_company(EXACT[dtype], data, torch.get_num_threads, torch.set_num_threads, most=90)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(exact: bool, data: st.DataObject) -> None:
    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool((a - b).abs().max() < 1e-4)

    model = EXACT[torch.float32] if exact else tiny_model(3, exact=False, layers=2)
    check_tree(model, data, torch.equal if exact else close, most=70, nodes=12)


@pytest.mark.parametrize("exit_layer", [1, 2])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_rows_resumed_at_a_layer_equal_rows_run_whole(exit_layer: int, data: st.DataObject) -> None:
    check_resumed_rows(tiny_model(5, layers=3), data, exit_layer, most=70, nodes=12)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
def test_the_last_norm_and_the_head_serve_drafters(exact: bool, tied: bool) -> None:
    """`norm` and `logits` are what a pass ends with; rows of the unembedding give columns of it."""
    model = tiny_model(2, exact=exact, tied=tied, known=50)
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3], 3)], capture=["layer.2", "final_norm"])
    normed = model.norm(output.features["layer.2"])
    assert torch.equal(normed, output.features["final_norm"])
    assert torch.equal(model.logits(normed), output.logits)
    ids = torch.tensor([3, 8, 41])
    assert torch.allclose(normed @ model.unembedding(ids).T, output.logits[:, ids], atol=1e-5)
    doubled = model.norm(output.features["layer.2"], torch.full((32,), 2.0))
    assert torch.allclose(doubled, 2 * model.norm(output.features["layer.2"], torch.ones(32)))


def test_c20_padding_rows_of_the_head_are_never_computed() -> None:
    model = tiny_model(0, known=50)
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3, 4], 4)])
    assert output.logits.shape == (4, 50)
