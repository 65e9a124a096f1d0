"""Every family against transformers, in any company, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taslak.errors import CheckpointError
from taslak.models.config import DecoderConfig
from taslak.models.decoder import Decoder
from taslak.models.families import FAMILIES
from taslak.models.rope_config import rope_config
from taslak.models.target import chain_rows
from tests.support.families import CASES, FAMILY_CASES, WINDOW, ours, tiny_transformers
from tests.support.widths import check_any_company, check_resumed_rows, check_tree

LENGTH = 150


@cache
def made(case: str, *, exact: bool) -> Decoder:
    return Decoder(*ours(tiny_transformers(case)), exact=exact)


def test_every_family_has_its_cases() -> None:
    assert {case.split("-")[0] for case in CASES} == set(FAMILIES)
    assert [case.split("-")[0] for case in FAMILY_CASES] == list(FAMILIES)
    slide = [case for case in FAMILY_CASES if made(case, exact=True).config.windows]
    assert slide == ["mistral-window", "gemma2", "gemma3_text", "phi3-window", "olmo3"]


@pytest.mark.parametrize("case", CASES)
def test_logits_agree_with_transformers(case: str) -> None:
    """Past the window of those that slide, in both forms of the arithmetic, and in between too."""
    reference = tiny_transformers(case)
    config, weights = ours(reference)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == config.tensors()
    ids = torch.randint(0, 61, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(ids, output_hidden_states=True)
    for exact in (False, True):
        decoder = Decoder(config, weights, exact=exact)
        names = ["embedding", "layer.0", "final_norm"]
        cache = decoder.allocate(LENGTH)
        output = decoder.forward([chain_rows(cache, ids[0].tolist(), LENGTH)], capture=names)
        assert (output.logits - expected.logits[0]).abs().max() < 1e-4
        for name, number in zip(names, (0, 1, 3), strict=True):
            assert (output.features[name] - expected.hidden_states[number][0]).abs().max() < 1e-4


@pytest.mark.parametrize("case", FAMILY_CASES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_exact_rows_of_every_family_have_the_same_bits_in_any_company(case: str, data: st.DataObject) -> None:
    check_any_company(made(case, exact=True), data, torch.get_num_threads, torch.set_num_threads, most=80)


@pytest.mark.parametrize("case", FAMILY_CASES)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_tree_rows_of_every_family_equal_the_chain_to_them(case: str, data: st.DataObject) -> None:
    check_tree(made(case, exact=True), data, torch.equal, most=70, nodes=16)


@pytest.mark.parametrize("case", FAMILY_CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_quick_tree_rows_see_what_the_chain_to_them_sees(case: str, data: st.DataObject) -> None:
    """Windows are counted by position, not by the place in the cache."""

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool((a - b).abs().max() < 1e-4)

    check_tree(made(case, exact=False), data, close, most=40, nodes=16)


@pytest.mark.parametrize("case", FAMILY_CASES)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_rows_of_every_family_resume_at_a_layer(case: str, data: st.DataObject) -> None:
    check_resumed_rows(made(case, exact=True), data, exit_layer=1, most=40, nodes=10)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
def test_what_lies_before_the_window_is_not_seen(exact: bool) -> None:
    """Three layers that see 11 positions each see 31: another token before these changes nothing at all."""
    decoder = Decoder(*ours(tiny_transformers("mistral-window")), exact=exact)
    ids = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    reach = 3 * (WINDOW - 1) + 1

    def last(tokens: list[int]) -> torch.Tensor:
        return decoder.forward([chain_rows(decoder.allocate(90), tokens, 1)]).logits

    plain = last(ids)
    for place, seen in ((90 - reach, True), (90 - reach - 1, False), (0, False)):
        changed = [*ids[:place], (ids[place] + 1) % 61, *ids[place + 1 :]]
        assert torch.equal(last(changed), plain) is not seen


@pytest.mark.parametrize("case", ["gemma3_text", "gemma2", "mistral-window", "gpt2"])
def test_shared_pages_serve_rows_behind_them(case: str) -> None:
    model = made(case, exact=True)
    ids = torch.randint(0, 61, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    first = model.allocate(150)
    whole = model.forward([chain_rows(first, ids, 150)]).logits
    first.keep(range(150))
    second = model.allocate(150, shared=list(first.pages[:2]))
    assert second.length == 128
    rest = model.forward([chain_rows(second, ids[128:], 22)]).logits
    assert torch.equal(rest, whole[128:])
    first.release()
    second.release()


# -- reading config.json ------------------------------------------------------------------------------------


def gemma3(**changes: Any) -> dict[str, Any]:
    """As Gemma 3's own files have it."""
    values: dict[str, Any] = {
        "model_type": "gemma3_text",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "query_pre_attn_scalar": 256,
        "final_logit_softcapping": None,
        "max_position_embeddings": 32768,
    }
    return {**values, **changes}


def test_older_spellings_of_windows_and_ropes() -> None:
    config = DecoderConfig.from_hf(gemma3())
    assert config.windows == (512,) * 5 + (0, 512)
    assert config.tied
    assert config.logit_cap == 0.0
    assert config.rope == rope_config({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 8.0}})
    assert config.rope_of(0) == config.local_rope == rope_config({"rope_theta": 1e4})
    assert config.rope_of(5) == config.rope
    assert DecoderConfig.from_hf(gemma3(sliding_window_pattern=2)).windows[:4] == (512, 0, 512, 0)
    short = DecoderConfig.from_hf(gemma3(max_position_embeddings=512))
    assert short.rope_of(0) == config.local_rope  # whether or not anything lies past the window


def test_a_window_that_is_null_is_none_and_one_that_is_left_out_is_the_familys() -> None:
    values = gemma3(model_type="gemma2", rope_scaling=None)
    assert DecoderConfig.from_hf({**values, "sliding_window": None}).windows == ()
    del values["sliding_window"]
    assert DecoderConfig.from_hf(values).windows == (4096, 0) * 3 + (4096,)
    assert DecoderConfig.from_hf(values).attention_cap == 50.0


def test_what_depends_on_the_texts_length_is_fixed_to_where_it_does_not() -> None:
    llama = tiny_transformers("llama").config.to_dict()
    longrope = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [9.0] * 4}
    scaled = {**llama, "rope_parameters": {**longrope, "original_max_position_embeddings": 100}}
    config = DecoderConfig.from_hf(scaled)
    assert config.context == 100
    assert config.rope.divisors == (1.0, 1.5, 2.0, 3.0)
    dynamic = {**llama, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}
    config = DecoderConfig.from_hf({**dynamic, "max_position_embeddings": 200})
    assert (config.context, config.rope.kind, config.rope.factor) == (200, "default", 1.0)
    with pytest.raises(
        CheckpointError, match=r"rope scaling 'ntk' is not supported; expected one of default"
    ):
        rope_config({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_act": "relu"}, "activation 'relu' is not supported; expected silu"),
        (
            {"layer_types": ["chunked_attention"] * 3},
            "layer of the kind 'chunked_attention' is not supported",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers; expected 3"),
    ],
)
def test_settings_that_are_not_known_are_refused(values: dict[str, Any], message: str) -> None:
    qwen = tiny_transformers("qwen3-window").config.to_dict()
    with pytest.raises(CheckpointError, match=message):
        DecoderConfig.from_hf({**qwen, **values})


def test_gpt2_without_its_usual_scaling_is_refused() -> None:
    values = tiny_transformers("gpt2").config.to_dict()
    with pytest.raises(
        CheckpointError, match="scale_attn_by_inverse_layer_idx True is not supported in gpt2"
    ):
        DecoderConfig.from_hf({**values, "scale_attn_by_inverse_layer_idx": True})


@pytest.mark.parametrize(
    "family",
    [
        *("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "jamba", "zamba2", "bamba"),
        *("lfm2", "falcon_h1", "granitemoehybrid", "nemotron_h", "qwen3_next", "xlstm", "kimi_linear"),
    ],
)
def test_c17_state_that_cannot_be_rolled_back_is_refused(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(
        CheckpointError, match=r"keeps a running state that can't be rolled back when a draft"
    ):
        DecoderConfig.from_folder(tmp_path)


@pytest.mark.parametrize("kind", ["linear_attention", "mamba", "conv"])
def test_c17_layers_with_state_are_refused_in_any_family(kind: str) -> None:
    values = tiny_transformers("qwen3").config.to_dict()
    with pytest.raises(CheckpointError, match="keeps a running state"):
        DecoderConfig.from_hf({**values, "layer_types": ["full_attention", kind, "full_attention"]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mixtral"}, "'mixtral' is a mixture of experts.*use a dense model"),
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"model_type": "something", "num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "gemma3n"}, "'gemma3n' is not supported: its layers keep several streams"),
        ({"model_type": "gemma3"}, r"it reads images too; use a checkpoint of its text part \(gemma3_text\)"),
        ({"model_type": "t5"}, "'t5' is not supported; expected one of llama, mistral, qwen2, qwen3, gemma"),
        ({}, "'unknown' is not supported"),
    ],
)
def test_other_models_are_refused_with_the_reason(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        DecoderConfig.from_hf(values)
