"""Names: folders, files, packs, Hub ids, in that order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from taslak.errors import CheckpointError, ModelNotFound
from taslak.models import loading
from taslak.models.loading import load_tensors, resolve
from taslak.models.loading.packs import file_digest

Build = Callable[..., Any]
PACK = "smollm2-135m-instruct"


@pytest.fixture
def folder(tmp_path: Path, tiny: Build, write_gguf: Build) -> Path:
    """A local checkpoint folder."""
    return Path(shutil.copytree(resolve(write_gguf(tiny()), dtype=torch.float32), tmp_path / "local"))


def test_a_folder_is_returned_as_it_is(folder: Path) -> None:
    assert resolve(str(folder), dtype=torch.bfloat16) == folder


def test_a_folder_goes_before_a_pack_of_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    folder.rename(PACK)
    assert resolve(PACK, dtype=torch.float32) == Path(PACK)


def test_a_gguf_need_not_end_in_gguf(tiny: Build, write_gguf: Build) -> None:
    path = write_gguf(tiny(), name="blob")
    assert "model.embed_tokens.weight" in load_tensors(resolve(path, dtype=torch.float32), torch.float32)


def test_a_pack_is_fetched_converted_and_then_only_looked_up(
    tiny: Build, write_gguf: Build, make_pack: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_gguf(tiny()).read_bytes()
    pack = make_pack(content[:5000], content[5000:])
    monkeypatch.setattr(loading, "find_pack", lambda name: pack if name == "fake" else None)
    folder = resolve("fake", dtype=torch.float32)
    assert file_digest(pack.path) == pack.sha256
    pack.path.unlink()
    assert resolve("fake", dtype=torch.float32) == folder


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(
        ModelNotFound, match=r"no model 'nonesuch': expected a folder .* one of the packs smol"
    ):
        resolve("nonesuch", dtype=torch.float32)
    with pytest.raises(ModelNotFound, match=r"Did you mean smollm2-135m-instruct\?"):
        resolve("smollm2-135m", dtype=torch.float32)
    for name in ("missing.gguf", "models/missing.gguf", "./a", "/no/such/folder", "", "a/b/c"):
        with pytest.raises(ModelNotFound):
            resolve(name, dtype=torch.float32)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        resolve(tmp_path, dtype=torch.float32)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(CheckpointError, match=r"notes.txt is not a GGUF file: expected one, or a folder"):
        resolve(tmp_path / "notes.txt", dtype=torch.float32)
