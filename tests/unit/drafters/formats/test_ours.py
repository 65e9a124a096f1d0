"""Our format for heads: what is written is read again, and nothing that doesn't fit loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from taslak.drafters.formats import CONFIGS as KINDS
from taslak.drafters.formats import Drafting, Head, LayerConfig, read_head, write_head
from taslak.errors import CheckpointError
from tests.support.heads import CONFIGS, random_head


@pytest.mark.parametrize("draft_ids", [None, [0, 3, 4, 60]], ids=["all", "some"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_head_survives_writing_and_reading(tmp_path: Path, kind: str, draft_ids: list[int] | None) -> None:
    drafting = None if draft_ids is None else Drafting(4, 2, nodes=6)
    head = replace(random_head(CONFIGS[kind], draft_ids=draft_ids), drafting=drafting)
    write_head(tmp_path, head, provenance={"from": "a test"})
    again = read_head(tmp_path)
    assert again.drafting == drafting
    assert (again.kind, again.config, again.target) == (kind, head.config, head.target)
    assert again.tensors.keys() == head.tensors.keys()
    assert all(torch.equal(again.tensors[name], head.tensors[name]) for name in head.tensors)
    assert (again.draft_ids is None) == (draft_ids is None)
    if draft_ids is not None:
        assert again.draft_ids is not None
        assert again.draft_ids.tolist() == draft_ids
    assert json.loads((tmp_path / "provenance.json").read_text()) == {"from": "a test"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_and_an_own_embedding(tmp_path: Path, dtype: torch.dtype) -> None:
    head = random_head(CONFIGS["eagle3"], own_embedding=True)
    half = {name: tensor.to(dtype) for name, tensor in head.tensors.items()}
    write_head(tmp_path, Head(head.target, head.config, half))
    tensors = read_head(tmp_path).tensors
    assert tensors["embed_tokens.weight"].dtype == dtype
    assert all(torch.equal(tensors[name], half[name]) for name in half)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("fault", ["missing", "renamed", "misshapen"])
def test_c31_tensors_that_do_not_fit_are_named(tmp_path: Path, kind: str, fault: str) -> None:
    write_head(tmp_path, random_head(CONFIGS[kind]))
    tensors = load_file(tmp_path / "model.safetensors")
    name = sorted(tensors)[0]
    tensor = tensors.pop(name)
    if fault == "renamed":
        tensors[name + "s"] = tensor
    if fault == "misshapen":
        tensors[name] = tensor[:-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=name):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "eagles"}, "eagles"),
        ({"taslak_head": 2}, "taslak_head 2"),
        ({"surprise": 1}, "surprise"),
        ({"draft_vocab_size": 7}, "draft_vocab_size 7"),
        ({"captures": [2, 1, 0]}, "captures"),
        ({"captures": [0, 1, 3]}, "captures"),
        ({"captures": "all"}, "captures"),
        ({"layer": None}, "layer"),
        ({"norm_before_residual": 1}, "norm_before_residual"),
        ({"target": {"name": "x", "hidden_size": 32}}, "vocab_size"),
        ({"target": {"name": "x", "hidden_size": 48, "vocab_size": 61}}, "fc.weight"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_settings_that_make_no_sense_are_named(tmp_path: Path, change: dict[str, object], match: str) -> None:
    write_head(tmp_path, random_head(CONFIGS["eagle3"]))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=match):
        read_head(tmp_path)


@pytest.mark.parametrize("ids", [[3, 2], [2, 2], [-1, 2], [2, 61]])
def test_draft_ids_ascend_inside_the_vocabulary(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(CheckpointError, match="draft_ids"):
        write_head(tmp_path, random_head(CONFIGS["medusa"], draft_ids=ids))


def test_folders_that_are_no_heads(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weights"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match="JSON"):
        read_head(tmp_path)


def test_rope_of_a_layer() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = LayerConfig(4, 2, 8, 48, rope_theta=5e5, rope_scaling=scaling).rope
    assert (rope.kind, rope.theta, rope.factor) == ("llama3", 5e5, 8.0)
