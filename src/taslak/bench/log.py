"""What is kept while a run goes on: a line for each finished call, so that the next run goes on there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taslak.bench.results import Measurement


def digest(*parts: Any) -> str:
    """A key of anything that JSON can hold; dataclasses by their fields."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=asdict)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


class Log:
    """An append-only JSONL file. A line that a kill cut off is skipped, and stays alone on its line."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """fresh: forget what an earlier run has left."""
        self._path = path
        self._kept: dict[str, Mapping[str, Any]] = {}
        if fresh:
            path.unlink(missing_ok=True)
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    row = json.loads(line)
                    self._kept[row["key"]] = row["value"]

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> Any:
        """What was kept under this key, None where nothing was."""
        return self._kept.get(key)

    def measurement(self, key: str) -> Measurement | None:
        """The same for a call; None as well where the line holds something else."""
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            return Measurement.from_json(self._kept[key])
        return None

    def put(self, key: str, value: Any) -> None:
        """Keep a dataclass, or anything that JSON can hold."""
        line = json.dumps({"key": key, "value": value}, ensure_ascii=False, allow_nan=False, default=asdict)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + line)  # an earlier line may have been cut off
        self._kept[key] = json.loads(line)["value"]
