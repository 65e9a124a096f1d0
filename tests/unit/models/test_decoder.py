"""The decoder against transformers, and against itself at other widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.models.cache import Block
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.target import Rows, chain_rows
from tests.support.tiny import tiny_model

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


def plain_logits(model: Decoder, tokens: list[int]) -> tuple[torch.Tensor, Block]:
    """Logits of every position, one row a pass."""
    cache = model.allocate(len(tokens) + 40)
    rows = []
    for token in tokens:
        rows.append(model.forward([chain_rows(cache, [token], 1)]).logits)
        cache.keep([0])
    return torch.cat(rows), cache


def cache_bits(model: Decoder, cache: Block) -> torch.Tensor:
    where = torch.tensor([cache.slot(position) for position in range(cache.length)])
    return torch.stack((model.pool.keys[:, where], model.pool.values[:, where]))


EXACT = {dtype: tiny_model(3, dtype=dtype, layers=2) for dtype in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_exact_rows_are_bit_identical_in_any_company(dtype: torch.dtype, data: st.DataObject) -> None:
    """Any prefill chunks, neighbours, slot placement, thread count: logits and cache bytes equal."""
    model = EXACT[dtype]
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=90))
    expected, plain_cache = plain_logits(model, tokens)
    threads = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from((1, 2, 3))))
    other = model.allocate(300)
    # a hole in the pool, so that this sequence's pages don't lie in a row
    first, hole = model.allocate(64), model.allocate(64)
    if data.draw(st.booleans()):
        first.release()
    cache = model.allocate(len(tokens) + 64)
    try:
        got = []
        done = 0
        while done < len(tokens):
            chunk = tokens[done : done + data.draw(st.integers(1, 17))]
            neighbour = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
            batch = [chain_rows(cache, chunk, len(chunk)), chain_rows(other, neighbour, 0)]
            turned = data.draw(st.booleans())
            got.append(model.forward(batch[::-1] if turned else batch).logits)
            cache.keep(range(len(chunk)))
            other.keep(range(len(neighbour)) if other.length < 200 else [])
            done += len(chunk)
        assert torch.equal(torch.cat(got), expected)
        assert torch.equal(cache_bits(model, cache), cache_bits(model, plain_cache))
    finally:
        torch.set_num_threads(threads)
        for block in (plain_cache, other, cache, first, hole):
            block.release()


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_tree_rows_equal_the_chain_to_them(exact: bool, data: st.DataObject) -> None:
    """A node's logits, and the cache after keeping its path, equal plain decoding of prefix + branch."""
    model = EXACT[torch.float32] if exact else tiny_model(3, exact=False, layers=2)
    prefix = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=70))
    n = data.draw(st.integers(1, 12))
    tokens = data.draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    parents = [-1, *(data.draw(st.integers(0, i)) for i in range(n - 1))]
    cache = model.allocate(len(prefix) + n)
    model.forward([chain_rows(cache, prefix, 0)])
    cache.keep(range(len(prefix)))
    output = model.forward([Rows(cache, tokens, parents, first=0, wanted=n)])
    node = data.draw(st.integers(0, n - 1))
    path = cache.ancestors(node)
    expected, plain_cache = plain_logits(model, prefix + [tokens[i] for i in path])
    cache.keep(path)
    try:
        if exact:
            assert torch.equal(output.logits[node], expected[-1])
            assert torch.equal(cache_bits(model, cache), cache_bits(model, plain_cache))
        else:
            assert (output.logits[node] - expected[-1]).abs().max() < 1e-4
            assert (cache_bits(model, cache) - cache_bits(model, plain_cache)).abs().max() < 1e-4
    finally:
        cache.release()
        plain_cache.release()


@pytest.mark.parametrize("exit_layer", [1, 2])
def test_rows_resumed_at_a_layer_equal_rows_run_whole(exit_layer: int) -> None:
    """Early exit: lower layers run first by themselves, some rows only; the rest joins from layer 0."""
    model = tiny_model(5, layers=3)
    prefix, tokens, parents = [1, 2, 3], [4, 5, 6, 7, 8], [-1, 0, 0, 1, 2]
    whole_cache, cache = model.allocate(64), model.allocate(64)
    for block in (whole_cache, cache):
        model.forward([chain_rows(block, prefix, 0)])
        block.keep(range(3))
    whole = model.forward([Rows(whole_cache, tokens, parents, 0, 5)], capture=["layer.0", "layer.2"])
    name = f"layer.{exit_layer - 1}"
    lower = model.forward([Rows(cache, tokens[:3], parents[:3], 0, 0)], (0, exit_layer), capture=[name])
    hidden = torch.zeros(5, 32)
    hidden[:3] = lower.features[name]
    resumed = model.forward(
        [Rows(cache, tokens, parents, 0, 5, starts=[exit_layer] * 3 + [0] * 2, hidden=hidden)],
        capture=["layer.2"],
    )
    assert torch.equal(resumed.logits, whole.logits)
    assert torch.equal(resumed.features["layer.2"], whole.features["layer.2"])
    for block in (whole_cache, cache):
        block.keep([0, 1, 3])
    assert torch.equal(cache_bits(model, cache), cache_bits(model, whole_cache))


def test_c20_padding_rows_of_the_head_are_never_computed() -> None:
    model = tiny_model(0, known=50)
    output = model.forward([chain_rows(model.allocate(4), [1, 2, 3, 4], 4)])
    assert output.logits.shape == (4, 50)
