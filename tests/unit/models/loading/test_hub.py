"""Hub ids, offline: against a folder laid out like the Hub's cache, and a client that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from safetensors.torch import save_file

from taslak.errors import CheckpointError, DownloadError, ModelNotFound
from taslak.models.loading import hub, load_tensors, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "generation_config.json": b"{}"}


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """The snapshot folder of org/name in a cache like huggingface_hub's."""
    repo = tmp_path / "hub" / "models--org--name"
    snapshot, blobs = repo / "snapshots" / COMMIT, repo / "blobs"
    for folder in (snapshot, blobs, repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    save_file({"w": torch.ones(2)}, tmp_path / "w")
    files = FILES | {"model.safetensors": (tmp_path / "w").read_bytes()}
    for number, (name, content) in enumerate(files.items()):
        (blobs / str(number)).write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / str(number))
    return snapshot


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)


def answer(kind: type[Any]) -> Exception:
    """An error of the Hub's client as it would come; its constructor wants a whole HTTP response."""
    error: Exception = kind.__new__(kind, "no")
    return error


def test_a_cached_checkpoint_works_offline(cached: Path) -> None:
    folder = resolve("org/name", dtype=torch.float32)
    assert folder.resolve() == cached.resolve()
    assert torch.equal(load_tensors(folder, torch.float32)["w"], torch.ones(2))


def test_a_cached_checkpoint_asks_nobody(cached: Path, online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, AssertionError("asked"))
    assert hub.snapshot("org/name").resolve() == cached.resolve()


def test_offline_and_absent_says_what_to_do() -> None:
    with pytest.raises(
        DownloadError, match="org/name is not in the local Hub cache and HF_HUB_OFFLINE is set"
    ):
        resolve("org/name", dtype=torch.float32)


def test_offline_and_half_there_says_what_to_do(cached: Path) -> None:
    (cached / "model.safetensors").unlink()
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        resolve("org/name", dtype=torch.float32)


def test_an_unreachable_hub(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ConnectionError("Name or service not known"))
    with pytest.raises(
        DownloadError, match=r"cannot reach the Hub for org/name \(Name or service not known\)"
    ):
        resolve("org/name", dtype=torch.float32)
    with pytest.raises(DownloadError, match="cannot reach the Hub"):
        hub.download_file("org/name", "x.gguf", Path("nowhere"))


def test_an_unknown_or_closed_repository(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, answer(RepositoryNotFoundError))
    with pytest.raises(ModelNotFound, match="no model org/name, or it is private"):
        resolve("org/name", dtype=torch.float32)
    with pytest.raises(DownloadError, match="no model org/name"):
        hub.download_file("org/name", "x.gguf", Path("nowhere"))
    fail_with(monkeypatch, answer(GatedRepoError))
    with pytest.raises(ModelNotFound, match="asks for its terms to be accepted"):
        resolve("org/name", dtype=torch.float32)


def test_a_download_reports_progress_and_is_checked(
    cached: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int | None]] = []

    def download(repo: str, **options: Any) -> Any:
        if options.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("absent")
        if options.get("dry_run"):
            return []
        bar = options["tqdm_class"](total=10, unit="B", desc="x", name="hub")
        bar.update(4)
        bar.update(6)
        options["tqdm_class"](total=3, unit="it").update(1)
        return str(cached)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.snapshot("org/name", lambda *state: seen.append(state)) == cached
    assert seen == [("downloading org/name", 4, 10), ("downloading org/name", 10, 10)]
    (cached / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        hub.snapshot("org/name")


@pytest.mark.parametrize("name", ["org/name", "Qwen/Qwen2.5-0.5B", "a/b_c.d-e"])
def test_hub_ids(name: str) -> None:
    assert hub.is_hub_id(name)


@pytest.mark.parametrize("name", ["name", "a/b/c", "./a", "../a", "/a", "a/", "~/a", "a b/c", ""])
def test_other_names(name: str) -> None:
    assert not hub.is_hub_id(name)
