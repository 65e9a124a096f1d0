"""What was typed in earlier chats, kept in the cache folder for its owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from taslak.models.loading.storage import cache_home

KEPT = 1000
"""Entries; the file is cut to them when it has grown to twice as many."""


class Past:
    """A file of one JSON string a line, so that entries may have several. Several chats may add to it.

    Every method raises OSError where the file can't be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_home() / "chat-history.jsonl"

    def entries(self) -> list[str]:
        """The last KEPT entries, the oldest first. Damaged lines are passed over."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        if len(lines) > 2 * KEPT:
            lines = lines[-KEPT:]
            partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
            _write(partial, "\n".join(lines) + "\n", os.O_TRUNC)
            os.replace(partial, self.path)
        return [entry for line in lines[-KEPT:] if (entry := _entry(line)) is not None]

    def add(self, entry: str) -> None:
        """One more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _write(self.path, json.dumps(entry) + "\n", os.O_APPEND)


def _write(path: Path, text: str, how: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # one that was there may be open to others
        file.write(text)


def _entry(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
