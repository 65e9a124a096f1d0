"""What was measured, kept across restarts: a thread writes records behind the caller's back.

Recording is never worth an answer: what can't be written is counted and said once, and nothing is raised.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

from taslak.control.database import Database, is_damage, read
from taslak.control.record import Record
from taslak.control.summary import Summary, add_up, group
from taslak.errors import OptionError
from taslak.models.loading import cache_home

log = logging.getLogger(__name__)

MOST_ROWS = 100_000
MOST_BYTES = 64 << 20

BATCH_SECONDS = 0.25
"""Records wait so long for others to be written together."""

MOST_WAITING = 10_000
"""Records in memory; more can't be written in time, and are lost."""

EXIT_SECONDS = 3.0
"""How long a process that ends, or a reader, waits for the last ones."""


class History:
    """Records of requests in a file that several processes may share.

    path:        default: history.sqlite in the cache folder (set TASLAK_HOME to change that)
    most_rows,   beyond either, the oldest requests are added up by day, model, method, verification, task,
    most_bytes:  temperature band and context band: single requests are lost, what was counted is not

    A damaged file is renamed `*.damaged-<time>`, told in a warning, and a new one begun. May be used from
    several threads. Raises OptionError for bounds under 10 rows or 64 kB; touches no file before it is used.
    """

    def __init__(
        self, path: Path | None = None, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES
    ) -> None:
        if most_rows < 10 or most_bytes < 64 << 10:
            raise OptionError(
                f"a history of {most_rows} rows and {most_bytes} bytes is too small; expected at least 10 "
                f"rows and {64 << 10} bytes"
            )
        self.path = cache_home() / "history.sqlite" if path is None else path
        self.lost = 0
        """Records that were not written."""
        self._bounds = (most_rows, most_bytes)
        self._changed = threading.Condition()
        self._waiting: list[Record] = []
        self._writing = self._hurry = self._closed = False
        self._thread: threading.Thread | None = None
        self._database: Database | None = None
        self._told: set[str] = set()

    def add(self, record: Record) -> None:
        """Have a record written soon. Takes microseconds, never waits for a disk and never raises; after
        `close` the record is lost."""
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                self.lost += 1
                return
            self._waiting.append(record)
            if self._thread is None:
                self._start()
            elif len(self._waiting) == 1:
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all records are written or lost. -> False where `timeout` seconds were too few."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout)

    def close(self, timeout: float | None = EXIT_SECONDS) -> None:
        """Write what waits, then give the file back. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
            atexit.unregister(self.close)

    def select(
        self,
        since: float | None = None,
        until: float | None = None,
        *,
        model: str | None = None,
        method: str | None = None,
        task: str | None = None,
    ) -> list[Record]:
        """Records that ended at `since` or later and before `until` (unix seconds), the oldest first.

        Raises UserError where the file can't be read, or is a newer taslak's or another program's.
        """
        self.flush(EXIT_SECONDS)
        asked = {
            "ended >= ?": since,
            "ended < ?": until,
            "model = ?": model,
            "method = ?": method,
            "task = ?": task,
        }
        conditions = [condition for condition, value in asked.items() if value is not None]
        values = tuple(value for value in asked.values() if value is not None)
        return read(self.path, " AND ".join(conditions) or "TRUE", values)

    def summary(
        self, by: str, since: float | None = None, until: float | None = None, **of: Any
    ) -> list[Summary]:
        """The records of `select` by method, task, temperature, context, model or day.

        Raises OptionError for another `by`, and what `select` does.
        """
        groups = group(self.select(since, until, **of), by)
        return [add_up(key, records) for key, records in groups.items()]

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write_all, name="taslak-history", daemon=True)
        try:
            self._thread.start()
            atexit.register(self.close)
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._thread, self._closed = None, True
            self._lose(len(self._waiting), error)
            self._waiting.clear()

    def _write_all(self) -> None:
        """The thread: takes what waits, a batch at a time, until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: self._hurry or self._closed, BATCH_SECONDS)
                batch, self._waiting = self._waiting, []
                self._writing, self._hurry = True, False
                closed = self._closed
            if batch:
                self._write(batch)
            with self._changed:
                self._writing = False
                self._changed.notify_all()
            if closed:
                break
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()

    def _write(self, batch: list[Record]) -> None:
        """Write a batch; where the file turns out to be damaged, into a new one."""
        try:
            try:
                unfit = self._open().insert(batch)
            except (sqlite3.DatabaseError, ValueError) as error:
                if self._database is None or not is_damage(error):
                    raise
                self._database.set_aside(error)
                self._database = None
                unfit = self._open().insert(batch)
            if unfit:
                self._lose(unfit, ValueError("a value in them is not a number"))
        except Exception as error:
            self._lose(len(batch), error)

    def _open(self) -> Database:
        """The file, opened again where another has its name."""
        if self._database is not None and not self._database.current:
            self._database.close()
            self._database = None
        if self._database is None:
            self._database = Database(self.path, *self._bounds)
        return self._database

    def _lose(self, count: int, error: Exception) -> None:
        """Count it, and say so once a reason."""
        self.lost += count
        reason = f"{type(error).__name__}: {error}"
        if reason not in self._told:
            self._told.add(reason)
            log.warning("statistics are not recorded in %s (%s); answers are unaffected", self.path, reason)
