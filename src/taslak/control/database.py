"""The history's file: records in SQLite, bounded in size, safe between processes, replaced where damaged.

One writer at a time, many readers (write-ahead log). Knows nothing about threads: one has its own `Database`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from taslak.control.record import DAY, MONTH, REQUEST, Record, merge
from taslak.core.counts import Counts
from taslak.engine.sequence import Seconds
from taslak.errors import UserError
from taslak.models.loading.storage import locked

log = logging.getLogger(__name__)

VERSION = 1
APPLICATION = 0x7461736C
"""SQLite's application_id: "tasl". Another program's file is not written to."""

BUSY_SECONDS = 5.0
"""How long a statement waits for another process."""

ROW_BYTES = 256
"""About what a row takes: only for how often to look."""

KEEP = 0.95
"""Of the most rows, what a roll-up leaves: a smaller part takes long, and other processes wait for it."""

_COLUMNS = {
    "ended": "REAL NOT NULL",
    "model": "TEXT NOT NULL",
    "method": "TEXT NOT NULL",
    "verify": "TEXT NOT NULL",
    "gamma": "INTEGER",
    "task": "TEXT NOT NULL",
    "temperature": "REAL NOT NULL",
    "prompt_tokens": "INTEGER NOT NULL",
    "tokens": "INTEGER NOT NULL",
    "passes": "INTEGER NOT NULL",
    "drafted": "INTEGER NOT NULL",
    "nodes": "INTEGER NOT NULL",
    "accepted": "INTEGER NOT NULL",
    "bonuses": "INTEGER NOT NULL",
    "offered_at": "TEXT NOT NULL",  # JSON
    "accepted_at": "TEXT NOT NULL",
    "draft_seconds": "REAL NOT NULL",
    "pass_seconds": "REAL NOT NULL",
    "other_seconds": "REAL NOT NULL",
    "speedup": "REAL",
    "draft_bytes": "INTEGER NOT NULL",
    "request": "TEXT NOT NULL",
    "requests": "INTEGER NOT NULL",
}
_NAMES = ", ".join(_COLUMNS)
_INSERT = f"INSERT INTO records (level, {_NAMES}) VALUES (?{', ?' * len(_COLUMNS)})"
_SELECT = f"SELECT {_NAMES} FROM records"


class Database:
    """A history's file, open for writing; made where there is none, replaced where it is damaged.

    most_rows, most_bytes:  beyond either, the oldest requests become a record a day (and those, where days
                            alone are too many, one a month for all tasks)

    The constructor and every call raise sqlite3.Error or OSError where the file can't be used, and UserError
    where it is a newer taslak's or another program's.
    """

    def __init__(self, path: Path, most_rows: int, most_bytes: int) -> None:
        self.path = path
        self._most_rows, self._most_bytes = most_rows, most_bytes
        with locked(path):  # two processes must not both begin a file
            try:
                self._connection = _begin(path)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                _rename(path, error)
                self._connection = _begin(path)
            self._file = _identity(path)
        self._unchecked = self._most_rows  # a file may be too large from the start

    @property
    def current(self) -> bool:
        """Whether the file still has its name: another process may have set it aside, a person removed it."""
        return _identity(self.path) == self._file

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def set_aside(self, error: Exception) -> None:
        """Close, rename the damaged file, and say so."""
        self.close()
        set_aside(self.path, self._file, error)

    def insert(self, records: Iterable[Record]) -> int:
        """Write all in one transaction. -> how many could not be, for what is in them."""
        unfit = 0
        with _transaction(self._connection) as execute:
            for record in records:
                self._unchecked += 1
                try:
                    execute(_INSERT, (REQUEST, *_row(record)))
                except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError):
                    unfit += 1  # a NaN, or not a number at all
                except (OverflowError, TypeError, ValueError):
                    unfit += 1
        if self._unchecked >= min(self._most_rows, self._most_bytes // ROW_BYTES) // 100:
            self._unchecked = 0
            try:
                self._bound()
            except sqlite3.OperationalError as error:
                if is_damage(error):
                    raise  # else busy, or a full disk: another time
        return unfit

    def _bound(self) -> None:
        """Merge the oldest rows where there are too many, and give the space back."""
        allowed = self._allowed()
        if self._rows() <= allowed:
            return
        with _transaction(self._connection):
            while (rows := self._rows()) > allowed:  # still: another process may have been here
                if not self._roll_up(REQUEST, DAY, rows - int(KEEP * allowed)):
                    break
                if (days := self._rows(DAY)) > allowed // 2:  # the rest is for single requests
                    self._roll_up(DAY, MONTH, days - int(KEEP * allowed / 2))
        self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free a single page
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _roll_up(self, level: int, coarser: int, count: int) -> bool:
        """Merge the `count` oldest rows of a level, with those there are of the coarser one too. -> whether
        there were any."""
        select = f"SELECT id, {_NAMES} FROM records"
        execute = self._connection.execute
        old = execute(f"{select} WHERE level = ? ORDER BY ended, id LIMIT ?", (level, count)).fetchall()
        if not old:
            return False
        # records at the borders of their day or month: a wider net than needed does no harm
        reach = 32 * 86400.0
        first, last = old[0][1] - reach, old[-1][1] + reach
        between = f"{select} WHERE level = ? AND ended BETWEEN ? AND ?"
        there = execute(between, (coarser, first, last)).fetchall()
        merged = merge((_record(row[1:]) for row in [*there, *old]), coarser)
        self._connection.executemany("DELETE FROM records WHERE id = ?", [row[:1] for row in [*there, *old]])
        self._connection.executemany(_INSERT, [(coarser, *_row(record)) for record in merged])
        return True

    def _rows(self, level: int | None = None) -> int:
        where = "" if level is None else f" WHERE level = {level}"
        return self._value(f"SELECT count(*) FROM records{where}")

    def _allowed(self) -> int:
        """Rows there may be, at the size that they have."""
        pages = self._value("PRAGMA page_count") - self._value("PRAGMA freelist_count")
        size = pages * self._value("PRAGMA page_size")
        return min(self._most_rows, self._rows() * self._most_bytes // max(size, 1))

    def _value(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0])


def read(path: Path, where: str, values: tuple[Any, ...]) -> list[Record]:
    """The records that a condition holds for, the oldest first; none where there is no file.

    A damaged file is set aside and holds none. Raises UserError for a file that can't be read.
    """
    try:
        if not path.exists():
            return []
        file = _identity(path)
        with contextlib.closing(_open_to_read(path)) as connection:
            if not _is_ours(connection, path):
                return []
            rows = connection.execute(f"{_SELECT} WHERE {where} ORDER BY ended, id", values).fetchall()
            return [_record(row) for row in rows]
    except (sqlite3.Error, OSError, ValueError) as error:
        if not is_damage(error):
            raise UserError(
                f"cannot read the history {path} ({error}): is it in use, or not yours?"
            ) from error
        set_aside(path, file, error)
        return []


def is_damage(error: Exception) -> bool:
    """Whether the file itself is broken. SQLite's CORRUPT and NOTADB are the only errors without a class of
    their own; a text that is no UTF-8 or no JSON came from a broken page."""
    return (
        type(error) is sqlite3.DatabaseError
        or isinstance(error, ValueError)
        or (isinstance(error, sqlite3.OperationalError) and "decode" in str(error))
    )


def set_aside(path: Path, file: tuple[int, int] | None, error: Exception) -> None:
    """Rename a damaged file, with its log, unless another process has done so: `file` is what was seen to be
    damaged. Never raises."""
    try:
        with locked(path):
            if file is not None and _identity(path) == file:
                _rename(path, error)
    except Exception as reason:
        log.warning("the history %s is damaged (%s) and cannot be renamed (%s)", path, error, reason)


def _rename(path: Path, error: Exception) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    names = (f"{path.name}.damaged-{stamp}{more}" for more in ("", *(f"-{i}" for i in range(2, 1000))))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    for suffix in ("-wal", "-shm", ""):  # the log must not be left to the new file
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    log.warning("the history %s is damaged (%s): kept as %s, a new one begins", path, error, aside.name)


def _begin(path: Path) -> sqlite3.Connection:
    """A connection for writing; the table is made where there is none."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        if not _is_ours(connection, path):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only works before there is a table
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            with _transaction(connection) as execute:
                columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
                execute(f"CREATE TABLE records (id INTEGER PRIMARY KEY, level INTEGER NOT NULL, {columns})")
                execute("CREATE INDEX by_time ON records (level, ended)")
                execute(f"PRAGMA application_id = {APPLICATION}")
                execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may lose the last seconds
        connection.execute(f"PRAGMA journal_size_limit = {4 << 20}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; also in a folder that can't be written to."""
    address = path.resolve().as_uri()
    # not mode=ro: the last to close must be able to clear the log away
    connection = sqlite3.connect(f"{address}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA query_only = TRUE")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if os.access(path.parent, os.W_OK):
            raise
        # the log's index can't be made there; then nobody writes, either
        return sqlite3.connect(f"{address}?immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """False for an empty file. Raises UserError for what a newer taslak or another program has written."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables and not version:
        return False
    if application != APPLICATION:
        raise UserError(
            f"{path} is not a history of taslak but another program's database: name another file"
        )
    if version > VERSION:
        raise UserError(
            f"the history {path} was written by a newer taslak (format {version}; this one knows "
            f"{VERSION}): update taslak, or name another file"
        )
    return True


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[Any]:
    """All or nothing; the right to write is taken at once, for what is read first to stay true."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.execute
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name. Not opened for it: closing it would drop SQLite's locks of this process."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _row(record: Record) -> tuple[Any, ...]:
    counts, seconds = record.counts, record.seconds
    return (
        *(record.ended, record.model, record.method, record.verify, record.gamma, record.task),
        *(record.temperature, record.prompt_tokens, record.tokens),
        *(counts.passes, counts.drafted, counts.nodes, counts.accepted, counts.bonuses),
        *(json.dumps(counts.offered_at), json.dumps(counts.accepted_at)),
        *(seconds.draft, seconds.pass_, seconds.other),
        *(record.speedup, record.draft_bytes, record.request, record.requests),
    )


def _record(row: tuple[Any, ...]) -> Record:
    """By place: a reader makes a hundred thousand of them."""
    counted: list[Any] = [*row[9:14], json.loads(row[14]), json.loads(row[15])]
    fields: list[Any] = [*row[:9], Counts(*counted), Seconds(*row[16:19]), *row[19:]]
    return Record(*fields)
