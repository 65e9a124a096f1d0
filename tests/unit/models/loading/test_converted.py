"""Conversion: the same model in transformers, once, whole or not at all."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from taslak.errors import CheckpointError, DiskError, OptionError
from taslak.models.loading import converted, load_tensors, remembered, resolve, storage
from taslak.models.loading.converted import SafetensorsWriter, convert

Build = Callable[..., Any]
IDS = torch.tensor([[5, 80, 3, 200, 7, 41, 99, 12]])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", {"rope_theta": 500000.0, "num_key_value_heads": 1}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
    ],
)
def test_the_converted_model_has_the_original_logits(
    tiny: Build, write_gguf: Build, family: str, changes: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM

    original = tiny(family, **changes)
    folder = convert(write_gguf(original), torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is type(original)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, original(IDS).logits)


def test_scaled_rope_survives(tiny: Build, write_gguf: Build) -> None:
    from transformers import AutoModelForCausalLM

    original = tiny(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    model = AutoModelForCausalLM.from_pretrained(
        convert(write_gguf(original, settings=settings), torch.float32)
    )
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, original(IDS).logits)


def test_bfloat16_is_stored_as_such_in_a_folder_of_its_own(tiny: Build, write_gguf: Build) -> None:
    path = write_gguf(original := tiny())
    folder = convert(path, torch.bfloat16)
    assert folder != convert(path, torch.float32)
    tensors = load_tensors(folder, torch.bfloat16)
    for name, weight in original.state_dict().items():
        assert torch.equal(tensors[name], weight.to(torch.bfloat16)), name


def test_another_dtype_is_refused(tiny: Build, write_gguf: Build) -> None:
    with pytest.raises(OptionError, match="float16 is not supported; choose one of: float32, bfloat16"):
        convert(write_gguf(tiny()), torch.float16)


def test_tensors_are_aligned_in_memory(tiny: Build, write_gguf: Build) -> None:
    tensors = load_tensors(convert(write_gguf(tiny()), torch.float32), torch.float32)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())


def test_the_second_time_nothing_is_read_or_written(
    tiny: Build, write_gguf: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny())
    folder = resolve(path, dtype=torch.float32)
    monkeypatch.setattr(remembered, "file_digest", lambda *_: pytest.fail("hashed again"))
    monkeypatch.setattr(converted, "_write_model", lambda *_: pytest.fail("converted again"))
    assert resolve(str(path), dtype=torch.float32) == folder


def test_a_changed_file_is_converted_again(tiny: Build, write_gguf: Build) -> None:
    folder = resolve(write_gguf(tiny()), dtype=torch.float32)
    assert resolve(write_gguf(tiny("qwen2")), dtype=torch.float32) != folder


def test_progress_ends_at_the_whole(tiny: Build, write_gguf: Build) -> None:
    seen: list[tuple[str, int, int | None]] = []
    convert(write_gguf(tiny()), torch.float32, progress=lambda *state: seen.append(state))
    assert seen[-1][0] == "converting tiny.gguf to float32"
    assert seen[-1][1] == seen[-1][2]


def test_an_interrupted_conversion_leaves_nothing_and_starts_afresh(
    tiny: Build, write_gguf: Build, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    path, write = write_gguf(tiny()), SafetensorsWriter.write
    monkeypatch.setattr(SafetensorsWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(path, torch.float32)
    assert [entry.suffix for entry in (home / "converted").iterdir()] == [".lock"]
    monkeypatch.setattr(SafetensorsWriter, "write", write)
    folder = convert(path, torch.float32)
    assert (folder / "model.safetensors").is_file()


def test_what_a_killed_conversion_left_behind_is_cleared(tiny: Build, write_gguf: Build) -> None:
    path = write_gguf(tiny())
    target = converted.converted_folder(path.stem, remembered.gguf_digest(path), torch.float32)
    partial = target.with_name(target.name + ".partial")
    partial.mkdir(parents=True)
    (partial / "rubbish").write_text("half a file")
    assert not (convert(path, torch.float32) / "rubbish").exists()


def test_conversions_at_once_are_done_once(
    tiny: Build, write_gguf: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, times = write_gguf(tiny()), converted._write_model, []
    monkeypatch.setattr(converted, "_write_model", lambda *args: (times.append(1), write(*args)))
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(convert(path, torch.float32, digest="d" * 64)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert times == [1]


def test_a_full_disk_is_found_out_first(
    tiny: Build, write_gguf: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, usage = write_gguf(tiny()), shutil.disk_usage("/")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage._replace(free=5_000_000))
    with pytest.raises(DiskError, match=r"converting tiny\.gguf to float32: 67 MB needed, 5 MB free"):
        convert(path, torch.float32)


def test_a_writer_that_is_given_too_little_or_too_much_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match="4 bytes were written where 8 belong"),
        SafetensorsWriter(tmp_path / "a", "F32", 4, {"x": (2,)}) as writer,
    ):
        writer.write("x", b"1234")
    with (
        pytest.raises(CheckpointError, match="x is longer than its shape"),
        SafetensorsWriter(tmp_path / "b", "F32", 4, {"x": (1,), "y": (1,)}) as writer,
    ):
        writer.write("x", b"12345678")
