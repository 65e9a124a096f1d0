"""Served prompts kept as training data, for who asked for that."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from taslak.errors import OptionError

log = logging.getLogger(__name__)


class Collector:
    """Appends prompts to a JSONL file as `taslak train --prompts` reads them. Answers aren't kept: training
    makes its own.

    Raises OptionError for a file that can't be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._lock = threading.Lock()
        self._complained = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            raise OptionError(f"{path} can't be written: {error.strerror}") from None

    def messages(self, messages: list[dict[str, str]], task: str) -> None:
        """Keep a conversation."""
        self._write({"messages": messages}, task)

    def text(self, prompt: str, task: str) -> None:
        """Keep a text that was to be continued."""
        if prompt.strip():
            self._write({"prompt": prompt, "raw": True}, task)

    def _write(self, row: dict[str, Any], task: str) -> None:
        if task:
            row["task"] = task
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        try:
            with self._lock, self._path.open("ab", buffering=0) as file:
                file.write(line)  # one call: lines of several processes don't mix
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("prompts can't be collected any more, answers go on: %s", error)
