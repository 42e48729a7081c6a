"""Checked reads on a journal file: blocking, on one connection.

What is read is checked on the way: positions without holes, the hash chain of each stream, and at the end the heads of
the streams, so that a cut-off end is seen. What comes before damage is delivered, then JournalCorrupt names the place.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from statefork.journal.codec import Chain, Codec, Tails, corrupt, digest_of_heads
from statefork.journal.errors import JournalCorrupt, JournalError, JournalUnavailable, closed
from statefork.journal.log import Recorded
from statefork.journal.schema import APPLICATION_ID, FORMAT

_DAMAGE = {0, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}
"""Result codes that speak of the file's content; 0 is Python's own: text that is not UTF-8."""

_ROOM_BYTES_MIN = 64 * 1024  # SQLite needs half of it beside the journal, for the index of the write-ahead log

_COLUMNS = "position, CAST(stream AS BLOB), version, CAST(event AS BLOB), CAST(hash AS BLOB)"
_ALL = f"SELECT {_COLUMNS} FROM events WHERE position > :after ORDER BY position LIMIT :count"
_OF_STREAM = f"SELECT {_COLUMNS} FROM events WHERE stream = :stream AND version > :start ORDER BY version LIMIT :count"
_START = (
    "SELECT coalesce((SELECT version FROM events WHERE stream = :stream AND position <= :after"
    " ORDER BY version DESC LIMIT 1), 0)"
)
_LAST = "SELECT position, hash FROM events ORDER BY position DESC LIMIT 1"
_LAST_OF_STREAM = "SELECT version, hash FROM events WHERE stream = ? ORDER BY version DESC LIMIT 1"
_LAST_POSITION = "SELECT coalesce((SELECT position FROM events WHERE stream = ? ORDER BY version DESC LIMIT 1), 0)"
_BEGUN_LATER = "SELECT stream, min(version) FROM events WHERE position > ? GROUP BY stream"
_HASH = "SELECT max(hash) FROM events WHERE stream = ? AND version = ?"
_PROMISED = "SELECT coalesce(sum(version), 0), coalesce(sum(typeof(version) <> 'integer'), 0) FROM streams"
_HEAD = "SELECT version, hash FROM streams WHERE stream = ?"
_HEADS = "SELECT CAST(stream AS BLOB), version, hash FROM streams"

CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk ends with the event that passes this size: what one reader holds at a time is bounded."""

HEADS_ASKED_MAX = 500
"""Where more streams than this were read, all heads are fetched at once."""

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
    end: End | None  # read only where the rows end


class End(NamedTuple):
    """What the file says about where its events, or those of one stream, end."""

    promised: int  # number of events that the heads of the streams add up to
    last: Head | None  # number and hash of the last event, of all or of the one stream, from the events themselves
    heads: dict[str, Head]  # of the streams that were read


class Chunk(NamedTuple):
    """Checked events. With ``error``, there is damage right behind them. ``tails`` are for the chain to go on."""

    events: list[Recorded]
    tails: Tails
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
        last = self._one(_LAST_POSITION, stream)
        if not last and not self.stream_version(stream):
            return None
        chunk = self.chunk(max(int(last) - 1, 0), stream, 2, self.chain())
        if chunk.error is not None:
            raise chunk.error
        return chunk.tails.get(stream)

    def chain(self) -> Chain:
        """A fresh check for a read that begins on this file."""
        return Chain(lambda stream, version: self._one(_HASH, stream, version - 1))

    def chunk(
        self,
        after: int,
        stream: str | None,
        count: int,
        chain: Chain,
        *,
        start: int | None = None,
        check_end: bool = True,
    ) -> Chunk:
        """Up to ``count`` checked events after a position, fewer where they are big. The chain is not changed.

        ``start`` is the version of the stream's last event up to there, if it is known. Without ``check_end`` the heads
        of the streams are not compared where the events end.
        """
        events: list[Recorded] = []
        fresh: Tails = {}
        try:
            with self._lock:
                selected = self._select(after, stream, count, start, chain if check_end else None)
            check_rows(self._codec, selected, after, stream, chain, events, fresh)
            if selected.end is not None:
                last = events[-1].position if events else after
                check_last(last, stream, selected, {**chain.tails, **fresh})
        except JournalError as error:
            return Chunk(events, fresh, ended=False, error=error)
        return Chunk(events, fresh, selected.ended, None)

    def _select(self, after: int, stream: str | None, count: int, start: int | None, chain: Chain | None) -> Selected:
        """Rows after a position. Rows before damage are returned; the next call, which begins behind them, raises."""
        rows: list[StoredRow] = []
        end = None
        names: dict[str, Any] = {"after": after, "count": count, "stream": stream, "start": start or 0}
        connection = self._connection
        with translated(self._path, after + 1):
            connection.execute("BEGIN")  # one snapshot for the events and the heads
            try:
                if stream is not None and start is None and after > 0:
                    (names["start"],) = connection.execute(_START, names).fetchone()
                room = CHUNK_BYTES
                for row in connection.execute(_ALL if stream is None else _OF_STREAM, names):
                    rows.append(row)
                    room -= len(row[3] or b"")
                    if room < 0:
                        break
                ended = len(rows) < count and room >= 0
                if ended and chain is not None:
                    end = self._end(stream, rows, chain)
            except sqlite3.DatabaseError:
                if not rows:
                    raise
                ended = False
            except TypeError as error:  # a column holds a value of another type
                raise corrupt(after + 1, "the table of streams is broken") from error
            finally:
                connection.rollback()
        return Selected(rows, names["start"], ended, end)

    def _end(self, stream: str | None, rows: Sequence[StoredRow], chain: Chain) -> End:
        query = self._connection.execute
        if stream is not None:
            head = query(_HEAD, (stream,)).fetchone()
            last = query(_LAST_OF_STREAM, (stream,)).fetchone()
            return End(head[0] if head else 0, last, {stream: head} if head else {})
        promised, odd = query(_PROMISED).fetchone()
        last = query(_LAST).fetchone()
        if odd:
            raise corrupt(last[0] if last else 0, "a number of events is no number")
        seen = {*chain.tails, *(row[1].decode(errors="replace") for row in rows if type(row[1]) is bytes)}
        if len(seen) <= HEADS_ASKED_MAX:
            heads = {name: query(_HEAD, (name,)).fetchone() for name in seen}
        else:
            heads = {str(name, errors="replace"): (version, last) for name, version, last in query(_HEADS)}
        return End(promised, last, heads)

    def _one(self, query: str, *parameters: object) -> Any:
        with self._lock, translated(self._path, 0):
            return self._connection.execute(query, parameters).fetchone()[0]


def check_rows(
    codec: Codec,
    selected: Selected,
    after: int,
    stream: str | None,
    chain: Chain,
    events: list[Recorded],
    fresh: Tails,
) -> None:
    """Check the rows one by one, and give those that are sound to ``events``. Every event read passes here."""
    decode, check, last = codec.decode, chain.check, after
    if stream is not None and selected.rows and selected.rows[0][2] != selected.start + 1:
        raise corrupt(selected.rows[0][0], f"an event of stream {stream!r} before it is missing")
    for position, name, version, data, digest in selected.rows:
        if stream is None and position != last + 1:
            raise corrupt(last + 1, "it is missing")
        if position <= last:
            raise corrupt(position, f"it stands behind position {last}")
        if type(version) is not int or not (type(name) is type(data) is type(digest) is bytes):
            raise corrupt(position, "a column holds a value of another type")
        try:
            named, text = name.decode(), digest.decode()
        except UnicodeDecodeError as error:
            raise corrupt(position, "a column holds bytes that are no text") from error
        check(position, named, version, data, text, fresh)
        event = decode(data, position=position)
        events.append(Recorded(position=position, stream=named, version=version, event=event, hash=text))
        last = position


def check_last(last: int, stream: str | None, selected: Selected, tails: Tails) -> None:
    """The events ended after position ``last``: is that where the heads of the streams say that they end?"""
    assert selected.end is not None
    promised, stored, heads = selected.end
    there = stored[0] if stored is not None else 0
    if not (isinstance(promised, int) and isinstance(there, int)):
        raise corrupt(last, "a number of events is no number")
    if promised > there:
        where = "the journal" if stream is None else f"stream {stream!r}"
        raise corrupt(last + 1, f"the end is cut off: {promised} events of {where} were recorded")
    wrong = next((name for name, tail in tails.items() if heads.get(name) != tail), None)
    if stream is not None and (heads.get(stream) != stored or not (selected.rows or selected.start == there)):
        wrong = stream
    if wrong is not None:
        raise corrupt(last, f"the last event of stream {wrong!r} is not the one that was recorded as last")
    if promised < there:
        raise corrupt(last, f"{there} events are there, but only {promised} were recorded")
