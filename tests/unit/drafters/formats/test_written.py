"""Heads written in other projects' layouts: the same bits, the same numbers, and nothing bent to fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from taslak.drafters.formats import (
    Drafting,
    Eagle3Config,
    EagleConfig,
    Head,
    MedusaConfig,
    eagle,
    eagle3,
    medusa,
    read_head,
)
from taslak.errors import CheckpointError
from tests.support import interop, published
from tests.support.heads import LAYER, random_head
from tests.support.interop import CLOSE, LAYOUTS, Layout

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@every_layout
def test_a_published_file_is_written_again_as_it_was(tmp_path: Path, layout: Layout) -> None:
    theirs, ours = interop.written_again(layout, tmp_path)
    assert interop.same(theirs, ours)


@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_there_and_back_again(tmp_path: Path, layout: Layout, dtype: torch.dtype) -> None:
    head, again = interop.there_and_back(layout, tmp_path, dtype)
    assert interop.same_heads(head, again)
    assert (again.target.hidden_size, again.target.vocab_size) == (published.H, published.V)


@every_layout
def test_a_written_head_computes_what_the_definition_says(tmp_path: Path, layout: Layout) -> None:
    interop.there_and_back(layout, tmp_path)
    assert interop.difference(tmp_path) < CLOSE


@every_layout
def test_a_published_head_computes_what_the_definition_says(tmp_path: Path, layout: Layout) -> None:
    assert interop.difference(published.stored(tmp_path, *layout.published())) < CLOSE


def test_the_reference_sees_a_wrong_norm_and_a_wrong_map(tmp_path: Path) -> None:
    """What the comparison is worth: a head read with the wrong rule is far away."""
    eagle3.write_speculators(tmp_path, LAYOUTS["speculators"].head())
    file = tmp_path / "config.json"
    decoder, weights = interop.target()
    settings, tensors = json.loads(file.read_text()), load_file(tmp_path / "model.safetensors")
    features = torch.randn(len(interop.TEXT), 3 * published.H)
    out, _ = interop.ours(read_head(tmp_path), decoder, interop.TEXT, features)
    wrong, _ = interop.reference(
        {**settings, "norm_before_residual": False}, tensors, weights, interop.TEXT, features
    )
    assert interop.apart(out, wrong) > 0.1


@pytest.mark.parametrize(("write", "biased"), [(eagle.write_for_sglang, True), (eagle.write, False)])
def test_biases_are_where_each_reader_looks_for_them(tmp_path: Path, write: Any, biased: bool) -> None:
    """SGLang always has a bias of fc, random where it is missing, and takes "bias" for the attention's."""
    head = random_head(EagleConfig(replace(LAYER, qkv_bias=True), fc_bias=False))
    write(tmp_path, head)
    tensors, settings = (
        load_file(tmp_path / "model.safetensors"),
        json.loads((tmp_path / "config.json").read_text()),
    )
    assert ("fc.bias" in tensors) == biased
    assert ("layers.0.self_attn.o_proj.bias" in tensors) == biased
    assert settings["attention_bias"] == biased
    assert settings["bias"] is False
    again = read_head(tmp_path)
    assert isinstance(again.config, EagleConfig)
    assert (again.config.fc_bias, again.config.layer.qkv_bias) == (biased, True)
    assert interop.difference(tmp_path) < CLOSE


def test_speculators_names_layers_by_hidden_states_and_specforge_by_outputs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = random_head(Eagle3Config(LAYER, (0, 1, 2)), draft_ids=published.IDS)
    eagle3.write_speculators(tmp_path / "a", head, gamma=3, verifier="org/name")
    eagle3.write(tmp_path / "b", head)
    a, b = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert a["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert b["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert a["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert a["speculators_config"]["verifier"]["name_or_path"] == "org/name"
    assert a["norm_before_residual"] is False, "missing, it means different things to different readers"
    assert [read_head(tmp_path / name).config for name in "ab"] == [head.config, head.config]
    assert "counted in two ways" in caplog.text
    # without ids every reader takes the paper's layers
    eagle3.write_speculators(tmp_path / "c", replace(head, config=Eagle3Config(LAYER)))
    config = read_head(tmp_path / "c").config
    assert isinstance(config, Eagle3Config)
    assert config.captures is None


def test_a_head_is_used_as_it_is_used_best(tmp_path: Path) -> None:
    head = replace(LAYOUTS["speculators"].head(), drafting=Drafting(6))
    eagle3.write_speculators(tmp_path, head)
    values = json.loads((tmp_path / "config.json").read_text())["speculators_config"]
    assert values["proposal_methods"][0]["speculative_tokens"] == 6


@pytest.mark.parametrize("write", [eagle3.write, eagle3.write_speculators])
def test_c23_a_whole_vocabulary_needs_no_map(tmp_path: Path, write: Any) -> None:
    config = Eagle3Config(LAYER, (0, 1, 2))
    write(tmp_path, random_head(config, draft_ids=range(published.V)))
    assert not {"d2t", "t2d"} & load_file(tmp_path / "model.safetensors").keys()
    assert read_head(tmp_path).draft_ids is None


def test_biases_of_q_k_and_v_survive_every_layout(tmp_path: Path) -> None:
    """Llamas have them only together with one of the output, which is written as zeros."""
    layer = replace(LAYER, qkv_bias=True)
    head = random_head(Eagle3Config(layer, (0, 1, 2)), draft_ids=published.IDS)
    for name, write in (("a", eagle3.write), ("b", eagle3.write_speculators)):
        write(tmp_path / name, head)
        assert interop.same_heads(head, read_head(tmp_path / name))
        assert interop.difference(tmp_path / name) < CLOSE
    file = tmp_path / "b" / "model.safetensors"
    bias = load_file(file)["layers.0.self_attn.o_proj.bias"]
    assert not bias.any()
    config, tensors = published.speculators(
        transformer_layer_config={**published.LLAMA, "attention_bias": True}
    )
    tensors |= {
        f"layers.0.self_attn.{n}_proj.bias": torch.ones(size)
        for n, size in {"q": 32, "k": 16, "v": 16, "o": 32}.items()
    }
    with pytest.raises(CheckpointError, match=r"o_proj\.bias"):
        read_head(published.stored(tmp_path / "c", config, tensors))


def test_medusa_heads_that_share_or_borrow_an_unembedding_get_it_each(tmp_path: Path) -> None:
    shared = random_head(MedusaConfig(2, 1, "shared"))
    medusa.write(tmp_path / "shared", shared)
    again = read_head(tmp_path / "shared")
    assert again.config == MedusaConfig(2, 1, "own")
    assert torch.equal(again.tensors["heads.1.unembed.weight"], shared.tensors["unembed.weight"])
    borrowed = random_head(MedusaConfig(2, 1, "target"), draft_ids=[3, 4, 60])
    lm_head = torch.randn(published.V, published.H)
    medusa.write(tmp_path / "target", borrowed, unembedding=lm_head, base="org/name")
    again = read_head(tmp_path / "target")
    assert torch.equal(again.tensors["heads.0.unembed.weight"], lm_head)
    assert (again.draft_ids, again.target.name) == (None, "org/name")


def some(config: Any, **options: Any) -> Head:
    return random_head(config, draft_ids=[3, 4, 60], **options)


@pytest.mark.parametrize(
    ("write", "head", "match"),
    [
        (eagle.write, lambda: random_head(EagleConfig(LAYER, input_norm=True)), "input_norm"),
        (eagle.write_for_sglang, lambda: random_head(EagleConfig(LAYER, final_norm=True)), "final_norm"),
        (eagle.write, lambda: random_head(MedusaConfig(2)), "medusa"),
        (eagle3.write, lambda: some(Eagle3Config(LAYER, norm_before_residual=True)), "norm_before_residual"),
        (eagle3.write_speculators, lambda: random_head(EagleConfig(LAYER)), "eagle"),
        (medusa.write, lambda: some(MedusaConfig(2)), "3 of 61 tokens"),
        (medusa.write, lambda: random_head(MedusaConfig(2, 1, "target")), "none was given"),
        (medusa.write, lambda: random_head(EagleConfig(LAYER)), "eagle"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_layout_cannot_say_is_refused(tmp_path: Path, write: Any, head: Any, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        write(tmp_path / "out", head())
    assert not (tmp_path / "out").exists()
