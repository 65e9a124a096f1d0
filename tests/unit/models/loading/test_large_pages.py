"""Bytes of a file in large pages: the same bytes mapped or read, and which of the two it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taslak.models.loading import large_pages
from taslak.native.tensors import LARGE_PAGE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    numbers = torch.arange(3 * LARGE_PAGE + 12345, dtype=torch.int64) * 2654435761 % 251
    path.write_bytes(numbers.to(torch.uint8).numpy().tobytes())
    return path


@pytest.mark.parametrize("size", [0, 1, LARGE_PAGE - 1, 2 * LARGE_PAGE, 3 * LARGE_PAGE + 12345])
@pytest.mark.parametrize("large", [0.0, 0.5, 1.0, None])
def test_bytes_are_those_of_the_file(
    size: int, large: float | None, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large is not None:  # else as the system has it
        pages = int(large * (size // LARGE_PAGE * LARGE_PAGE))
        monkeypatch.setattr(large_pages, "_large_bytes", lambda address: pages)
    start, whole = large_pages.load(file, size)
    content = file.read_bytes()
    assert start.numpy().tobytes() == content[:size]
    assert whole.numpy().tobytes() == content


@pytest.mark.parametrize(("share", "mapped", "forgotten"), [(0, False, 0), (1, False, 1), (3, True, 0)])
def test_a_file_in_large_pages_is_used_as_it_lies(
    share: int, mapped: bool, forgotten: int, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(large_pages, "_large_bytes", lambda address: share * LARGE_PAGE)
    monkeypatch.setattr(large_pages, "forget", calls.append)
    start, whole = large_pages.load(file, 3 * LARGE_PAGE)
    assert (start.data_ptr() == whole.data_ptr()) is mapped
    assert calls == [file] * forgotten


def test_a_mapping_without_large_pages_has_none() -> None:
    assert large_pages._large_bytes(torch.zeros(10).data_ptr()) == 0
    assert large_pages._large_bytes(0) == 0


def test_writing_to_the_memory_leaves_the_file(file: Path) -> None:
    content = file.read_bytes()
    start, whole = large_pages.load(file, 2 * LARGE_PAGE)
    start.zero_()
    whole[-10:] = 0
    assert file.read_bytes() == content


def test_forgetting_changes_nothing(file: Path) -> None:
    content = file.read_bytes()
    large_pages.forget(file)
    assert file.read_bytes() == content
