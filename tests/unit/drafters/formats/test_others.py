"""Heads as other projects publish them: what their files mean, and that nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from taslak.drafters.formats import Eagle3Config, EagleConfig, MedusaConfig, find_head, read_head, write_head
from taslak.errors import CheckpointError
from tests.support.heads import CONFIGS, random_head
from tests.support.published import IDS, LLAMA, VD, H, V, eagle1, eagle3, medusa, speculators, stored


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_eagle(tmp_path: Path, file: str) -> None:
    config, tensors = eagle1()
    head = read_head(stored(tmp_path, config, tensors, file))
    assert isinstance(head.config, EagleConfig)
    assert (head.kind, head.config.fc_bias, head.config.input_norm, head.config.final_norm) == (
        "eagle",
        True,
        False,
        False,
    )
    assert head.config.layer.rope_theta == 500000.0
    assert torch.equal(head.tensors["layer.k.weight"], tensors["layers.0.self_attn.k_proj.weight"])
    assert torch.equal(head.tensors["layer.down.weight"], tensors["layers.0.mlp.down_proj.weight"])
    assert (head.target.hidden_size, head.target.vocab_size, head.target.layers) == (H, V, None)
    del tensors["embed_tokens.weight"]
    assert "embed_tokens.weight" not in read_head(stored(tmp_path, config, tensors, file)).tensors


@pytest.mark.parametrize("ids", [None, [0, 1, 2]], ids=["the paper's", "named"])
def test_eagle3_and_specforge(tmp_path: Path, ids: list[int] | None) -> None:
    """A layer id is the layer whose output is read; without ids the paper's layers."""
    config, tensors = eagle3()
    if ids:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    head = read_head(stored(tmp_path, config, tensors))
    assert isinstance(head.config, Eagle3Config)
    assert head.config.captures == (None if ids is None else (0, 1, 2))
    assert head.config.features_of(32) == ((1, 15, 28) if ids is None else (0, 1, 2))
    assert head.config.norm_before_residual is False
    assert head.draft_ids is not None
    assert torch.equal(head.tensors["layer.q.weight"], tensors["midlayer.self_attn.q_proj.weight"])


def test_speculators_counts_hidden_states(tmp_path: Path) -> None:
    """Layer id k is hidden_states[k], the output of layer k − 1: one less than SpecForge's."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    head = read_head(stored(tmp_path, *speculators(**ids)))
    assert isinstance(head.config, Eagle3Config)
    assert head.config.captures == (0, 1, 2)
    assert head.config.norm_before_residual is True
    assert head.target.name == "org/target"
    head = read_head(stored(tmp_path, *speculators(**ids, norm_before_residual=False)))
    assert isinstance(head.config, Eagle3Config)
    assert head.config.norm_before_residual is False


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"fc_norm": True}, "fc_norm"),
        ({"norm_output": True}, "norm_output"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "embedding"),
        ({"transformer_layer_config": None}, "transformer_layer_config"),
    ],
    ids=str,
)
def test_speculators_variants_that_are_not_supported_are_named(
    tmp_path: Path, settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(CheckpointError, match=match):
        read_head(stored(tmp_path, *speculators(**settings)))


def test_layer_ids_count_as_the_architecture_says_and_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SpecForge's and SGLang's ids are outputs of layers, vLLM's are hidden states: one more."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    found = {}
    for name in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"):
        config, tensors = eagle3()
        read = read_head(stored(tmp_path, {**config, **ids, "architectures": [name]}, tensors)).config
        assert isinstance(read, Eagle3Config)
        found[name] = read.captures
        assert str(list(read.captures or ())) in caplog.records[-1].getMessage()
    assert found == {"LlamaForCausalLMEagle3": (1, 2, 3), "Eagle3LlamaForCausalLM": (0, 1, 2)}
    caplog.clear()
    read_head(stored(tmp_path, *eagle3()))
    read_head(stored(tmp_path, *speculators(**ids)))
    assert not caplog.records, "no ids, and ids that mean one thing"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"norm_output": True}, "norm_output"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"use_aux_norm": True}, "use_aux_norm"),
        ({"target_hidden_size": 64}, "64"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
    ids=str,
)
def test_eagle3_variants_that_are_not_supported_are_named(
    tmp_path: Path, settings: dict[str, Any], match: str
) -> None:
    config, tensors = eagle3()
    with pytest.raises(CheckpointError, match=match):
        read_head(stored(tmp_path, {**config, **settings}, tensors))


def test_both_spellings_of_a_rope_are_one(tmp_path: Path) -> None:
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 |= {"rope_type": "llama3", "original_max_position_embeddings": 8192}  # type: ignore[dict-item]
    found = []
    for settings in (
        {"rope_scaling": llama3},
        {"rope_theta": None, "rope_parameters": {**llama3, "rope_theta": 500000.0}},
    ):
        config, tensors = eagle1()
        found.append(read_head(stored(tmp_path, {**config, **settings}, tensors)).config)
    assert found[0] == found[1]
    config, tensors = eagle1()
    plain = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    read = read_head(stored(tmp_path, plain, tensors)).config
    assert isinstance(read, EagleConfig)
    assert (read.layer.rope_scaling, read.layer.rope_theta) == (None, 500000.0)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("layers", [1, 2])
def test_medusa(tmp_path: Path, file: str, layers: int) -> None:
    config, tensors = medusa(3, layers)
    head = read_head(stored(tmp_path, config, tensors, file))
    assert head.config == MedusaConfig(3, layers, "own")
    assert torch.equal(head.tensors["heads.2.unembed.weight"], tensors[f"2.{layers}.weight"])
    assert torch.equal(head.tensors["heads.1.blocks.0.bias"], tensors["1.0.linear.bias"])
    config["medusa_num_heads"] = 2  # published configs say fewer than there are
    assert read_head(stored(tmp_path, config, tensors, file)).config == MedusaConfig(3, layers, "own")


def test_c23_draft_ids_are_offsets(tmp_path: Path) -> None:
    config, tensors = eagle3()
    head = read_head(stored(tmp_path, config, tensors))
    assert head.draft_ids is not None
    assert head.draft_ids.tolist() == IDS, "id = i + d2t[i]"
    order = torch.randperm(VD)
    tensors["d2t"] = torch.tensor(IDS)[order] - torch.arange(VD)
    mixed = read_head(stored(tmp_path, config, tensors))
    assert mixed.draft_ids is not None
    assert mixed.draft_ids.tolist() == IDS
    row = int((order == 3).nonzero())
    assert torch.equal(mixed.tensors["lm_head.weight"][3], tensors["lm_head.weight"][row])


@pytest.mark.parametrize("fault", ["missing", "zeros", "short", "other", "twice", "outside"])
def test_c23_a_map_that_is_missing_or_wrong_is_an_error(tmp_path: Path, fault: str) -> None:
    config, tensors = eagle3()
    if fault == "missing":
        del tensors["d2t"]
    if fault == "zeros":
        tensors["d2t"].zero_()
    if fault == "short":
        tensors["d2t"] = tensors["d2t"][:-1].clone()
    if fault == "other":
        tensors["t2d"] = tensors["t2d"].roll(1).clone()
    if fault in ("twice", "outside"):
        del tensors["t2d"]
        tensors["d2t"][5] += 1000 if fault == "outside" else IDS[6] - IDS[5]
    with pytest.raises(CheckpointError, match=r"d2t|draft_ids"):
        read_head(stored(tmp_path, config, tensors))


@pytest.mark.parametrize("zeros", [True, False])
def test_c23_without_a_map_a_full_vocabulary_is_the_identity(tmp_path: Path, zeros: bool) -> None:
    config, tensors = eagle3()
    config["draft_vocab_size"] = V
    tensors["lm_head.weight"] = torch.randn(V, H)
    del tensors["t2d"]
    tensors["d2t"] = torch.zeros(V, dtype=torch.int64)
    if not zeros:
        del tensors["d2t"]
    assert read_head(stored(tmp_path, config, tensors)).draft_ids is None


@pytest.mark.parametrize("make", [eagle1, eagle3, speculators, medusa], ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", ["missing", "renamed", "misshapen"])
def test_c31_their_names_are_in_the_message(tmp_path: Path, make: Any, fault: str) -> None:
    config, tensors = make()
    name = next(name for name in tensors if name.endswith(("k_proj.weight", "1.0.linear.weight")))
    tensor = tensors.pop(name)
    if fault == "renamed":
        tensors[name.replace("weight", "weights")] = tensor
    if fault == "misshapen":
        tensors[name] = tensor[:-2].clone()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        read_head(stored(tmp_path, config, tensors))


def test_pickled_files_hold_tensors_alone(tmp_path: Path) -> None:
    config, tensors = eagle1()
    torch.save({**tensors, "run": Path("/")}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        read_head(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a file of tensors")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        read_head(tmp_path)


def test_a_model_is_no_head_and_a_shipped_head_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taslak.drafters import formats

    shipped = tmp_path / "heads"
    write_head(shipped / "small-medusa", random_head(CONFIGS["medusa"]))
    monkeypatch.setattr(formats, "SHIPPED", shipped)
    assert find_head("small-medusa") == shipped / "small-medusa"
    assert read_head(find_head("small-medusa") or "").kind == "medusa"
    for name in ("smollm2-135m-instruct", "org/name", "", "..", "heads/small-medusa", tmp_path / "nothing"):
        assert find_head(name) is None
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    (model / "tokenizer.json").write_text("{}")
    assert find_head(model) is None
    own = tmp_path / "own"
    own.mkdir()
    stored(own, *eagle1())
    assert find_head(own) == own
