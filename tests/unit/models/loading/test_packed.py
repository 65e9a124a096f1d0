"""Packed models: the same numbers as the converted ones, once, whole or not at all; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from taslak import native
from taslak.errors import CheckpointError, OptionError
from taslak.models import loading, pretrained
from taslak.models.loading import (
    load_packed,
    load_tensors,
    own_dtype,
    packed,
    remembered,
    resolve,
    resolve_packed,
)
from taslak.models.loading.packed import pack_gguf
from taslak.models.pretrained import load_pretrained
from taslak.models.target import chain_rows
from taslak.native import Packed

Build = Callable[..., Any]
needs_kernels = pytest.mark.skipif(not native.available(), reason="needs the native kernels")
WIDE = ("self_attn.v_proj.weight", "layers.1.mlp.")
"""What of a model of two layers is bfloat16 in int8."""
IDS = [5, 80, 3, 200, 7, 41, 99, 12]


def dequantised(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: weight.dequantised() if isinstance(weight, Packed) else weight
        for name, weight in load_packed(folder).items()
    }


@pytest.fixture
def q8(tiny: Build, write_gguf: Build, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a GGUF whose matrices are stored as Q8_0 (or another kind that the gguf package can make)."""

    def write(family: str = "llama", kind: str = "Q8_0", **changes: Any) -> Path:
        add, quantisation = gguf.GGUFWriter.add_tensor, gguf.GGMLQuantizationType[kind]

        def quantise(self: Any, name: str, values: np.ndarray, *args: Any, **options: Any) -> None:
            if values.ndim == 2:
                rows = gguf.quants.quantize(values, quantisation)
                add(self, name, rows, *args, raw_dtype=quantisation, **options)
            else:
                add(self, name, values, *args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(gguf.GGUFWriter, "add_tensor", quantise)
            return write_gguf(tiny(family, **changes), name=f"{family}-{kind}.gguf")

    return write


@needs_kernels
@pytest.mark.parametrize(
    ("kind", "dtype"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("Q4_1", "int4"), ("Q5_0", "int8")]
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_packed_weights_are_the_converted_ones(
    q8: Callable[..., Path], kind: str, dtype: str, tied: bool
) -> None:
    path = q8(kind=kind, tie_word_embeddings=tied)  # a llama: q and k are permuted
    expected = load_tensors(resolve(path, dtype=torch.float32), torch.float32)
    found = dequantised(resolve_packed(path, dtype=dtype)[1])
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        wide = dtype == "int8" and any(part in name for part in WIDE)
        torch.testing.assert_close(found[name], weight, rtol=2**-8 if wide else 1e-6, atol=1e-7)


@needs_kernels
@pytest.mark.parametrize(
    ("source", "dtype"),
    [("gguf", "bfloat16"), ("gguf", "int8"), ("gguf", "int4"), ("folder", "bfloat16"), ("folder", "int8")],
)
def test_every_matrix_has_its_width(
    q8: Callable[..., Path], tiny: Build, write_gguf: Build, source: str, dtype: str
) -> None:
    path = q8(kind="Q4_0") if source == "gguf" else resolve(write_gguf(tiny()), dtype=torch.float32)
    weights = load_packed(resolve_packed(path, dtype=dtype)[1])
    kinds = {name: weight.kind for name, weight in weights.items() if isinstance(weight, Packed)}
    assert len(kinds) == 2 * 7 + 2
    for name, kind in kinds.items():
        wide = dtype == "int8" and any(part in name for part in WIDE)
        assert kind == ("bfloat16" if wide else dtype), name


@needs_kernels
def test_pieces_add_up_to_the_whole(q8: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = q8()
    whole = load_packed(pack_gguf(path, "int8"))
    monkeypatch.setattr("taslak.models.loading.gguf_tensor.CHUNK_ELEMENTS", 1)
    pieces = load_packed(pack_gguf(path, "int8", digest="p" * 64))
    for name, weight in whole.items():
        other = pieces[name]
        same = (
            torch.equal(weight.buffer, other.buffer)
            if isinstance(weight, Packed)
            else torch.equal(weight, other)
        )
        assert same, name


@needs_kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_of_safetensors_is_packed_beside_its_tokenizer(
    tiny: Build, write_gguf: Build, dtype: str, tied: bool
) -> None:
    folder = resolve(write_gguf(tiny(tie_word_embeddings=tied)), dtype=torch.float32)
    home, stored = resolve_packed(folder, dtype=dtype)
    assert home == folder
    expected = load_tensors(folder, torch.float32)
    found = dequantised(stored)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=2**-8, atol=0.01 * float(weight.abs().max()))
    assert resolve_packed(folder, dtype=dtype) == (home, stored)
    save_file({**expected, "model.norm.weight": torch.zeros(32)}, folder / "model.safetensors")
    assert resolve_packed(folder, dtype=dtype)[1] != stored


@needs_kernels
def test_the_second_time_nothing_is_hashed_or_packed(
    q8: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = q8()
    folder = resolve_packed(path, dtype=own_dtype(path))
    monkeypatch.setattr(remembered, "file_digest", lambda *_: pytest.fail("hashed again"))
    monkeypatch.setattr(remembered, "GGUFModel", lambda *_: pytest.fail("opened again"))
    monkeypatch.setattr(packed, "_write_gguf", lambda *_: pytest.fail("packed again"))
    assert resolve_packed(path, dtype=own_dtype(path)) == folder


@needs_kernels
def test_an_embedding_beside_a_head_is_mapped_the_rest_is_read(q8: Callable[..., Path]) -> None:
    for tied in (False, True):
        folder = pack_gguf(q8(tie_word_embeddings=tied), "int8")
        index = json.loads((folder / "weights.json").read_text())
        assert (index["resident"] == index["bytes"]) is tied
        weights = load_packed(folder)
        ends = {w.buffer.untyped_storage().data_ptr() for w in weights.values() if isinstance(w, Packed)}
        assert len(ends) == (1 if tied else 2)


@needs_kernels
@pytest.mark.parametrize("damage", ["cut", "index", "gone"])
def test_a_damaged_folder_is_told(q8: Callable[..., Path], damage: str) -> None:
    folder = pack_gguf(q8(), "int8")
    if damage == "cut":
        (folder / "weights.bin").write_bytes((folder / "weights.bin").read_bytes()[:-1])
    elif damage == "index":
        (folder / "weights.json").write_text("{}")
    else:
        (folder / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged .* delete it"):
        load_packed(folder)


@needs_kernels
def test_interrupted_packing_leaves_nothing(
    q8: Callable[..., Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    path = q8()
    with monkeypatch.context() as patched:
        patched.setattr(packed.quantised, "pack_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack_gguf(path, "int8")
    assert [entry.suffix for entry in (home / "packed").iterdir()] == [".lock"]
    assert (pack_gguf(path, "int8") / "weights.json").is_file()


@needs_kernels
def test_a_packed_pack_needs_its_gguf_no_more(
    q8: Callable[..., Path], make_pack: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = make_pack(q8(kind="Q4_1").read_bytes(), dtype="int4")
    monkeypatch.setattr(loading, "find_pack", lambda name: pack if name == "fake" else None)
    assert own_dtype("fake") == "int4"
    folders = resolve_packed("fake", dtype="int4")
    pack.path.unlink()
    assert resolve_packed("fake", dtype="int4") == folders


@needs_kernels
def test_progress_ends_at_the_whole(q8: Callable[..., Path]) -> None:
    seen: list[tuple[str, int, int | None]] = []
    pack_gguf(q8(), "int8", progress=lambda *state: seen.append(state))
    assert seen[-1][0] == "packing llama-Q8_0.gguf as int8"
    assert seen[-1][1] == seen[-1][2]


# -- load_pretrained ----------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("kind", "dtype", "own"),
    [("Q4_1", "auto", "int4"), ("Q8_0", "auto", "int8"), ("Q8_0", "bfloat16", "bfloat16")],
)
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_model_runs_natively_and_agrees_with_float32(
    q8: Callable[..., Path], family: str, kind: str, dtype: str, own: str, tied: bool
) -> None:
    path = str(q8(family, kind, tie_word_embeddings=tied))
    wide, narrow = load_pretrained(path, dtype="float32"), load_pretrained(path, dtype=dtype)
    assert (narrow.dtype, narrow.path) == (own, "native")
    assert narrow.decoder.width_invariant
    assert narrow.decoder.pass_bytes < wide.decoder.pass_bytes / 1.5
    logits = [
        model.decoder.forward([chain_rows(model.decoder.allocate(8), IDS, 8)]).logits
        for model in (wide, narrow)
    ]
    assert logits[0].shape == logits[1].shape
    assert (logits[0] - logits[1]).abs().max() < 0.05 * logits[0].abs().max()


@needs_kernels
def test_auto_is_bfloat16_for_safetensors(tiny: Build, write_gguf: Build) -> None:
    folder = resolve(write_gguf(tiny()), dtype=torch.float32)
    assert load_pretrained(str(folder), dtype="auto").dtype == "bfloat16"


@needs_kernels
def test_int4_is_never_made(tiny: Build, write_gguf: Build, q8: Callable[..., Path]) -> None:
    folder = resolve(write_gguf(tiny()), dtype=torch.float32)
    for name in (folder, q8(), "org/name"):
        with pytest.raises(OptionError, match=r"holds no 4-bit weights.*use int8"):
            load_pretrained(str(name), dtype="int4")


def test_without_kernels_narrow_weights_are_refused_and_bfloat16_is_pytorchs(
    tiny: Build, write_gguf: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained.native, "available", lambda: False)
    path = str(write_gguf(tiny()))
    for dtype in ("int8", "int4"):
        with pytest.raises(OptionError, match=f"dtype {dtype} needs the native kernels.*use bfloat16"):
            load_pretrained(path, dtype=dtype)
    for dtype in ("auto", "bfloat16"):
        model = load_pretrained(path, dtype=dtype)
        assert (model.dtype, model.path, model.decoder.dtype) == ("bfloat16", "PyTorch", torch.bfloat16)


@needs_kernels
def test_a_misshapen_checkpoint_names_the_folder_the_tensor_and_both_shapes(
    tiny: Build, write_gguf: Build
) -> None:
    folder = resolve(write_gguf(tiny()), dtype=torch.float32)
    weights = load_tensors(folder, torch.float32)
    weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(64, 64)
    save_file(weights, folder / "model.safetensors")
    words = rf"{folder}.*layers\.0\.mlp\.up_proj\.weight has the shape \[64, 64\] where \[64, 32\]"
    with pytest.raises(CheckpointError, match=words):
        load_pretrained(str(folder), dtype="int8")
