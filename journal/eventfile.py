"""Checked reads on a journal file: blocking, on one connection.

What is read is checked on the way: positions without holes, the hash chain of each stream, and at the end the heads of
the streams, so that a cut-off end is seen. What comes before damage is delivered, then JournalCorrupt names the place.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from statefork.journal.codec import Chain, Codec, corrupt, digest_of_heads
from statefork.journal.errors import JournalCorrupt, JournalError, JournalUnavailable, closed
from statefork.journal.log import Recorded
from statefork.journal.schema import APPLICATION_ID, FORMAT

_DAMAGE = {0, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}
"""Result codes that speak of the file's content; 0 is Python's own: text that is not UTF-8."""

_ROOM_BYTES_MIN = 64 * 1024  # SQLite needs half of it beside the journal, for the index of the write-ahead log

_COLUMNS = "position, CAST(stream AS BLOB), version, CAST(event AS BLOB), CAST(hash AS BLOB)"
_ALL = f"SELECT {_COLUMNS} FROM events WHERE position > :after ORDER BY position LIMIT :count"
_OF_STREAM = f"SELECT {_COLUMNS} FROM events WHERE stream = :stream AND version > :start ORDER BY version LIMIT :count"
_START = "SELECT coalesce(max(version), 0) FROM events WHERE stream = :stream AND position <= :after"
_LAST = "SELECT position, hash FROM events ORDER BY position DESC LIMIT 1"
_LAST_OF_STREAM = "SELECT version, hash FROM events WHERE stream = :stream ORDER BY version DESC LIMIT 1"
_BEGUN_LATER = "SELECT stream, min(version) FROM events WHERE position > ? GROUP BY stream"
_HASH = "SELECT max(hash) FROM events WHERE stream = ? AND version = ?"
_HEADS = "SELECT CAST(stream AS BLOB), version, hash FROM streams"

StoredRow = tuple[int, Any, Any, Any, Any]
Head = tuple[int, str]


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 where Python itself raised."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def translated(path: Path, position: int) -> Iterator[None]:
    """SQLite's errors while reading as ours. ``position`` is where reading was to go on."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise closed() from error
    except UnicodeDecodeError as error:  # SQLite quotes in its message what it found, and Python can't decode that
        raise corrupt(position, f"the file {path.name} itself is broken") from error
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in _DAMAGE or not isinstance(error, sqlite3.OperationalError):
            raise corrupt(position, f"the file {path.name} itself is broken ({error})") from error
        if shutil.disk_usage(path.parent).free < _ROOM_BYTES_MIN:
            hint = "The disk is full: free space and try again; nothing was changed"
        else:
            hint = "Check the file's permissions and the disk, and that no other program holds the file locked"
        raise JournalUnavailable(
            f"The journal {path} can't be read: {error}",
            hint=hint,
            path=str(path),
        ) from error


def is_journal(connection: sqlite3.Connection, path: Path) -> bool:
    """True for a journal that we can read, False for a file in which nothing was ever recorded; else an error."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application not in (0, APPLICATION_ID) or tables - {"events", "streams"} or (application and not tables):
        raise JournalCorrupt(
            f"{path} is not a statefork journal, or its header is damaged",
            hint="Check the path, or restore the file from a copy; nothing was changed",
            position=0,
            path=str(path),
        )
    if version > FORMAT:
        raise JournalUnavailable(
            f"{path} has format {version}; this statefork knows {FORMAT}",
            hint="A newer statefork wrote it: upgrade",
            path=str(path),
        )
    filled = any(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in sorted(tables))
    if filled and not (application and version):
        raise corrupt(1, "the file's header does not say that it is a journal")
    return filled


class Selected(NamedTuple):
    """Rows as they are stored, all of one moment."""

    rows: list[StoredRow]
    start: int  # version of the stream before the first row; unused when reading all streams
    ended: bool
    heads: dict[str, Head]  # of all streams, or of the one asked for; read only at the end, as is ``last``
    last: Head | None  # number and hash of the last event, of all or of the one stream, from the events themselves


class Chunk(NamedTuple):
    """Checked events. With ``error``, there is damage right behind them."""

    events: list[Recorded]
    ended: bool
    error: JournalError | None


class EventFile:
    """One connection to a journal file. Safe to use from several threads; reads take turns."""

    def __init__(self, connection: sqlite3.Connection, path: Path, codec: Codec) -> None:
        self._connection = connection
        self._path = path
        self._codec = codec
        self._lock = threading.Lock()

    def close(self) -> None:
        """Later reads raise JournalUnavailable. Idempotent."""
        with self._lock:
            self._connection.close()

    def head(self) -> int:
        """The last position."""
        return int(self._one("SELECT coalesce(max(position), 0) FROM events"))

    def hash_at(self, position: int) -> str | None:
        """The stored hash of an event; None where there is none."""
        found = self._one("SELECT max(hash) FROM events WHERE position = ?", position)
        return found if isinstance(found, str) else None

    def stream_version(self, stream: str) -> int:
        """The number of events in a stream."""
        return int(self._one("SELECT coalesce(max(version), 0) FROM streams WHERE stream = ?", stream))

    def streams(self) -> list[str]:
        """The names of all streams, sorted."""
        with self._lock, translated(self._path, 0):
            return [name for (name,) in self._connection.execute("SELECT stream FROM streams ORDER BY stream")]

    def heads_digest(self, at: int) -> str:
        """The digest of all streams' heads as they stood at a position: those of now, without what came later."""
        connection = self._connection
        with self._lock, translated(self._path, at):
            connection.execute("BEGIN")
            try:
                later = dict(connection.execute(_BEGUN_LATER, (at,)))
                return digest_of_heads(self._heads_before(later))
            finally:
                connection.rollback()

    def _heads_before(self, later: dict[str, int]) -> Iterator[tuple[str, int, str]]:
        for stream, version, last in self._connection.execute(
            "SELECT stream, version, hash FROM streams ORDER BY stream"
        ):
            first = later.get(stream)
            if first is None:
                yield stream, version, last
            elif first > 1:
                yield stream, first - 1, self._connection.execute(_HASH, (stream, first - 1)).fetchone()[0]

    def tail(self, stream: str) -> Head | None:
        """A stream's head, with its last event verified; None for a stream that has no events."""
        last = self._one("SELECT coalesce(max(position), 0) FROM events WHERE stream = ?", stream)
        chain = self.chain()
        chunk = self.chunk(max(int(last) - 1, 0), stream, 2, chain)
        if chunk.error is not None:
            raise chunk.error
        return chain.tails.get(stream)

    def chain(self) -> Chain:
        """A fresh check for a read that begins on this file."""
        query = "SELECT max(hash) FROM events WHERE stream = ? AND version = ?"
        return Chain(lambda stream, version: self._one(query, stream, version - 1))

    def chunk(self, after: int, stream: str | None, count: int, chain: Chain, *, check_end: bool = True) -> Chunk:
        """Up to ``count`` checked events after a position.

        Without ``check_end`` the heads of the streams are not compared where the events end.
        """
        events: list[Recorded] = []
        last = after
        try:
            with self._lock:
                selected = self._select(after, stream, count, heads=check_end)
            if stream is not None and selected.rows and selected.rows[0][2] != selected.start + 1:
                raise corrupt(selected.rows[0][0], f"an event of stream {stream!r} before it is missing")
            for row in selected.rows:
                if stream is None and row[0] != last + 1:
                    raise corrupt(last + 1, "it is missing")
                if row[0] <= last:
                    raise corrupt(row[0], f"it stands behind position {last}")
                events.append(self._recorded(row, chain))
                last = row[0]
            if selected.ended and check_end:
                self._check_end(last, stream, selected, chain)
        except JournalError as error:
            return Chunk(events, ended=False, error=error)
        return Chunk(events, selected.ended, None)

    def _recorded(self, row: StoredRow, chain: Chain) -> Recorded:
        position, name, version, data, digest = row
        if not isinstance(version, int) or not all(isinstance(value, bytes) for value in (name, data, digest)):
            raise corrupt(position, "a column holds a value of another type")
        stream, text = name.decode(errors="replace"), digest.decode(errors="replace")
        chain.check(position, stream, version, data, text)
        event = self._codec.decode(data, position=position)
        return Recorded(position=position, stream=stream, version=version, event=event, hash=text)

    def _select(self, after: int, stream: str | None, count: int, *, heads: bool) -> Selected:
        """Rows after a position. Rows before damage are returned; the next call, which begins behind them, raises."""
        rows: list[StoredRow] = []
        found: dict[str, Head] = {}
        last = None
        names: dict[str, Any] = {"after": after, "count": count, "stream": stream, "start": 0}
        connection = self._connection
        with translated(self._path, after + 1):
            connection.execute("BEGIN")  # one snapshot for the events and the heads
            try:
                if stream is not None and after > 0:
                    (names["start"],) = connection.execute(_START, names).fetchone()
                rows.extend(connection.execute(_ALL if stream is None else _OF_STREAM, names))
                ended = len(rows) < count
                if heads and ended:
                    where = "" if stream is None else " WHERE stream = :stream"
                    last = connection.execute(_LAST if stream is None else _LAST_OF_STREAM, names).fetchone()
                    found = {
                        str(name, errors="replace"): (v, h) for name, v, h in connection.execute(_HEADS + where, names)
                    }
            except sqlite3.DatabaseError:
                if not rows:
                    raise
                ended = False
            except TypeError as error:  # a column holds a value of another type
                raise corrupt(after + 1, "the table of streams is broken") from error
            finally:
                connection.rollback()
        return Selected(rows, names["start"], ended, found, last)

    def _check_end(self, last: int, stream: str | None, selected: Selected, chain: Chain) -> None:
        """The events ended after position ``last``: is that where the heads of the streams say that they end?"""
        heads = selected.heads
        there = 0 if selected.last is None else selected.last[0]
        if not all(isinstance(number, int) for number in (there, *(version for version, _ in heads.values()))):
            raise corrupt(last, "a number of events is no number")
        promised = sum(version for version, _ in heads.values())
        if promised > there:
            where = "the journal" if stream is None else f"stream {stream!r}"
            raise corrupt(last + 1, f"the end is cut off: {promised} events of {where} were recorded")
        wrong = next((name for name, tail in chain.tails.items() if heads.get(name) != tail), None)
        if stream is not None and (
            heads.get(stream) != selected.last or not (selected.rows or selected.start == there)
        ):
            wrong = stream
        if wrong is not None:
            raise corrupt(last, f"the last event of stream {wrong!r} is not the one that was recorded as last")
        if promised < there:
            raise corrupt(last, f"{there} events are there, but only {promised} were recorded")

    def _one(self, query: str, *parameters: object) -> Any:
        with self._lock, translated(self._path, 0):
            return self._connection.execute(query, parameters).fetchone()[0]
