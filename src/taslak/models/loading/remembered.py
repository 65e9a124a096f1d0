"""What was once found out about a local file: a digest, the width of a GGUF's matrices, a kernel's layout.

Kept by path, size and time of change in the cache folder's `digests.json`, so that a gigabyte is hashed once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from taslak.errors import CheckpointError
from taslak.models.loading import storage
from taslak.models.loading.gguf import GGUFModel
from taslak.models.loading.packs import file_digest
from taslak.models.loading.quantised import own_dtype
from taslak.models.loading.storage import Progress


def gguf_digest(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a local GGUF. Raises CheckpointError for a file that can't be read or isn't a GGUF."""
    _check_magic(path)
    return digest(path, progress)


def gguf_dtype(path: Path) -> str:
    """The width of a local GGUF (see `quantised.own_dtype`). Raises CheckpointError."""
    _check_magic(path)
    return remember(path, "dtype", lambda: own_dtype(GGUFModel(path).quantisations()))


def digest(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a local file."""
    return remember(path, "sha256", lambda: file_digest(path, progress))


def remember(path: Path, fact: str, find: Callable[[], str]) -> str:
    """What `find` says, asked once for as long as the file stays the same."""
    status = path.stat()
    memory = storage.make_folder(storage.cache_home()) / "digests.json"
    key, stamp = str(path.resolve()), [status.st_size, status.st_mtime_ns]
    facts = _facts(memory, key, stamp)
    if fact not in facts:
        found = find()
        # Two processes may lose each other's entry here; that costs a hash later, nothing else.
        facts = {"stamp": stamp, **_facts(memory, key, stamp), fact: found}
        known = storage.read_json(memory)
        known = known if isinstance(known, dict) else {}
        with storage.full_disk_is_an_error(memory.parent, memory.name):
            storage.write_json(memory, known | {key: facts})
    return str(facts[fact])


def _check_magic(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise CheckpointError(
            f"{path} is not a GGUF file: expected one, or a folder in the Hugging Face layout "
            "(for a single .safetensors file, give the folder it lies in)"
        )


def _facts(memory: Path, key: str, stamp: list[int]) -> dict[str, object]:
    known = storage.read_json(memory)
    entry = known.get(key) if isinstance(known, dict) else None
    return dict(entry) if isinstance(entry, dict) and entry.get("stamp") == stamp else {}
