"""`taslak serve` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Process:
    """A running server: its address, and what it has written to standard error so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """The first line with it."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._said:
            assert self._said.wait_for(lambda: found() or self.process.poll() is not None, seconds)
            line = found()
        assert line is not None, "".join(self.lines)
        return line

    def end(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextmanager
def serving(*args: str, seconds: float = 90) -> Iterator[tuple[Process, str]]:
    """`taslak serve ARGS` on a free port, and its address once it listens, which may take so long."""
    command = [sys.executable, "-m", "taslak", "serve", *args, "--port", "0", "--no-record", "--threads", "1"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TASLAK_API_KEY": ""}
    )
    server = Process(process)
    try:
        line = server.wait_for("taslak serves", seconds)
        address = re.search(r"http://\S+", line)
        assert address is not None
        yield server, address[0]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
