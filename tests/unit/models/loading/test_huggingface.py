"""Checkpoint folders: shards, damage, and tensors that don't fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from taslak.errors import CheckpointError
from taslak.models.loading import check_tensors, huggingface, load_tensors

WEIGHTS = {"a": torch.randn(3, 4), "b": torch.randn(5), "n": torch.arange(3)}


def sharded(folder: Path) -> Path:
    save_file({"a": WEIGHTS["a"]}, folder / "model-1.safetensors")
    save_file({"b": WEIGHTS["b"], "n": WEIGHTS["n"]}, folder / "model-2.safetensors")
    write_index(folder, {"a": "model-1.safetensors", "b": "model-2.safetensors", "n": "model-2.safetensors"})
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_tensors(folder, torch.float32)
    return str(caught.value)


def test_one_file_is_mapped_not_copied(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = load_tensors(tmp_path, torch.float32)
    for name, weight in WEIGHTS.items():
        assert torch.equal(tensors[name], weight)
        # The same distance in memory as in the file: they are parts of one mapping.
        distance = header[name]["data_offsets"][0] - header["a"]["data_offsets"][0]
        assert tensors[name].data_ptr() - tensors["a"].data_ptr() == distance


def test_shards_are_put_together(tmp_path: Path) -> None:
    tensors = load_tensors(sharded(tmp_path), torch.float32)
    assert tensors.keys() == WEIGHTS.keys()
    assert torch.equal(tensors["b"], WEIGHTS["b"])


def test_floating_point_is_cast_and_integers_are_not(tmp_path: Path) -> None:
    tensors = load_tensors(sharded(tmp_path), torch.bfloat16)
    assert torch.equal(tensors["a"], WEIGHTS["a"].to(torch.bfloat16))
    assert tensors["n"].dtype == torch.int64


def test_another_single_name_is_found(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "weights.safetensors")
    assert load_tensors(tmp_path, torch.float32).keys() == WEIGHTS.keys()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-2.safetensors").unlink()
    assert "model-2.safetensors is missing: " in (message := refused(tmp_path))
    assert "b first" in message


def test_a_tensor_its_shard_lacks_is_named(tmp_path: Path) -> None:
    write_index(sharded(tmp_path), {"a": "model-1.safetensors", "c": "model-1.safetensors"})
    assert "model-1.safetensors has no tensor c" in refused(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    save_file(WEIGHTS, sharded(tmp_path) / "model-1.safetensors")
    assert "which another file" in refused(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path} is not a whole safetensors file" in refused(tmp_path)


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "is not a weight index" in refused(tmp_path)


def test_an_index_may_not_point_outside(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "../elsewhere.safetensors"})
    assert "outside its folder" in refused(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert "has no weights" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    assert "found pytorch_model.bin: only safetensors is read" in refused(tmp_path)
    save_file(WEIGHTS, tmp_path / "x.safetensors")
    save_file(WEIGHTS, tmp_path / "y.safetensors")
    assert "2 safetensors files but no model.safetensors.index.json" in refused(tmp_path)


def test_weights_that_need_scales_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    assert "the tensor w is stored as F8_E4M3" in refused(tmp_path)


def test_a_folder_is_checked_for_config_and_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config.json.*give the .gguf file itself"):
        huggingface.check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    sharded(tmp_path)
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        huggingface.check_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    huggingface.check_folder(tmp_path)


EXPECTED = {"a": (3, 4), "b": (5,)}


def misfit(tensors: dict[str, torch.Tensor], **options: tuple[str, ...]) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_tensors(tensors, EXPECTED, file="model.safetensors", **options)
    assert "model.safetensors does not fit its config" in str(caught.value)
    return str(caught.value)


def test_c31_a_renamed_or_misshapen_tensor_fails_and_is_named() -> None:
    a, b = torch.zeros(3, 4), torch.zeros(5)
    check_tensors({"a": a, "b": b}, EXPECTED, file="model.safetensors")
    renamed = misfit({"a": a, "bee": b})
    assert "missing b of shape [5]" in renamed
    assert "unexpected bee of shape [5]" in renamed
    assert "a has the shape [4, 3] where [3, 4] is expected" in misfit({"a": a.T, "b": b})
    assert "and 3 more" in misfit({"a": a, "b": b} | {f"x{n}": b for n in range(7)})


def test_c31_optional_tensors_may_come_or_go_but_must_fit() -> None:
    a, extra = torch.zeros(3, 4), torch.zeros(2)
    tensors = {"a": a, "layers.0.rotary_emb.inv_freq": extra}
    check_tensors(tensors, EXPECTED, optional=("b", "*.rotary_emb.inv_freq"), file="x")
    assert "b has the shape [2]" in misfit({"a": a, "b": extra}, optional=("b",))
