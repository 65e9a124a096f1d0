"""Where files live, how much room there is, and how two processes keep out of each other's way.

Knows nothing about models: a cache folder, a lock, a disk check, and the progress callback.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from taslak.errors import DiskError

LOCK_POLL_SECONDS = 0.2
# Room left over after a download or conversion, so that logs and temporary files still fit.
DISK_MARGIN_BYTES = 64 << 20


class Progress(Protocol):
    """Told how far long work is; called often, so it must be cheap."""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """`what` names the work for a person; `done` of `total` (None: unknown) are bytes of a download or
        conversion, and of other work its units: prompts, steps."""


def cache_home() -> Path:
    """The folder for packs and converted models: `TASLAK_HOME`, else the platform's cache folder."""
    if home := os.environ.get("TASLAK_HOME"):
        return Path(home).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "taslak"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "taslak"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "taslak"
    return Path.home() / ".cache" / "taslak"


def make_folder(folder: Path) -> Path:
    """`folder`, created with its parents. Raises DiskError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"cannot create the folder {folder} ({error.strerror}): name one that can be written "
            "(for the cache, set TASLAK_HOME)"
        ) from error
    return folder


def require_free(folder: Path, needed: int, what: str) -> None:
    """Raises DiskError unless `needed` bytes (and a small margin) are free where `folder` lies."""
    free = shutil.disk_usage(folder).free
    if free < needed + DISK_MARGIN_BYTES:
        raise DiskError(
            f"not enough disk space for {what}: {megabytes(needed + DISK_MARGIN_BYTES)} needed, "
            f"{megabytes(free)} free in {folder}. Free some space or use another disk (for the cache, set "
            "TASLAK_HOME)"
        )


@contextlib.contextmanager
def full_disk_is_an_error(folder: Path, what: str) -> Iterator[None]:
    """Turns write failures inside the block (no permission, disk filled up meanwhile) into DiskError."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"cannot write {what} to {folder} ({error.strerror or error}): "
            f"{megabytes(shutil.disk_usage(folder).free)} free. Free some space or set TASLAK_HOME"
        ) from error


@contextlib.contextmanager
def locked(target: Path, progress: Progress | None = None) -> Iterator[None]:
    """Holds the one lock for `target` (the file `<target>.lock` beside it), waiting for its turn.

    The operating system drops the lock when its holder ends, however it ends, so a lock file left
    behind never blocks anyone. After waiting, the caller must look again whether the work is done.
    """
    make_folder(target.parent)
    with full_disk_is_an_error(target.parent, "a lock file"):
        file = open(target.with_name(target.name + ".lock"), "a+b")  # noqa: SIM115, closed below
    with file:
        while not _try_lock(file.fileno()):
            if progress is not None:
                progress(f"waiting for another process to finish {target.name}", 0, None)
            time.sleep(LOCK_POLL_SECONDS)
        yield  # closing the file gives the lock back


def close_durably(file: IO[bytes]) -> None:
    """Closes a file whose folder is about to get its name: the rename must not outlive the data."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def build(target: Path, write: Callable[[Path], None], progress: Progress | None = None) -> Path:
    """The folder `target`, filled by `write` where it is not there yet.

    It gets its name when it is whole: interrupted work starts afresh, a second process waits for the first.
    """
    if target.is_dir():
        return target
    with locked(target, progress):
        if not target.is_dir():
            partial = target.with_name(target.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                write(partial)
                partial.rename(target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)  # gigabytes nobody could use
                raise
    return target


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def folder_size(folder: Path) -> int:
    """Bytes of all files in `folder` and below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON so that a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """The JSON in `path`, or None where the file is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def megabytes(count: int) -> str:
    """`count` bytes for a person: "98 MB", "1.12 GB"."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
