"""The writing side of a journal file: one connection, used by one thread at a time."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from time import perf_counter, sleep

import msgspec

from statefork.journal.batch import Entry, Heads, Row
from statefork.journal.codec import Codec
from statefork.journal.errors import JournalCorrupt, JournalError, JournalUnavailable
from statefork.journal.eventfile import EventFile, is_journal, primary_code, translated
from statefork.journal.reading import BUSY_TIMEOUT_S, identity, verify_tail
from statefork.journal.schema import create_schema

CHECKPOINT_BYTES = 4 * 1024 * 1024
"""After so many bytes of events the writer copies the log into the file, when nobody waits for it."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BUSY_POLL_S = 0.01

PACE_DECAY = 0.7
"""A slow commit is forgotten over the next ones: after three, half of it counts."""

ROWS_PER_STATEMENT = 64
"""SQLite gives Python's lock back once in each statement, and where the event loop is busy each return of it may take
milliseconds. So a group commit uses few statements, each for many rows. They are kept prepared, one for each number."""

_EVENTS = "INSERT INTO events (position, stream, version, event, hash) VALUES {rows}"
_HEADS = (
    "INSERT INTO streams (stream, version, hash) VALUES {rows}"
    " ON CONFLICT (stream) DO UPDATE SET version = excluded.version, hash = excluded.hash"
)


@lru_cache(maxsize=4 * ROWS_PER_STATEMENT)
def _statement(template: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return template.format(rows=", ".join([row] * rows))


def nothing() -> None:
    """Nothing is to be done."""


class Stats(msgspec.Struct, kw_only=True):
    """What a journal's writer did since it was opened."""

    commits: int = 0  # each waits once for the disk
    events: int = 0
    failures: int = 0


class Writer:
    """The writing connection. Blocking; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        sync_blobs: Callable[[], None] = nothing,
        blobs_wait: Callable[[], bool] = lambda: False,
        before_commit: Callable[[], None] = nothing,
    ) -> None:
        self._path = path
        self._sync_blobs = sync_blobs
        self._blobs_wait = blobs_wait
        self._before_commit = before_commit
        self._patient = True  # waits for another program's transaction
        self._pace_s = 1.0  # slow, until it has proved to be quick
        self._uncopied_bytes = 0
        self._broken: JournalError | None = None
        self.position = 0
        self.stats = Stats()
        with contextlib.suppress(OSError):  # nobody else reads what was typed; one that can't be made is told below
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with translated(path, 0):
            self._connection = sqlite3.connect(
                path,
                isolation_level=None,
                check_same_thread=False,
                timeout=BUSY_TIMEOUT_S,
                cached_statements=4 * ROWS_PER_STATEMENT,
            )
            self._file = EventFile(self._connection, path, Codec())
            self._heads = Heads(self._file.tail)
            try:
                self.fresh = self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> bool:
        """Check the file, or make it. True: there is no event in it yet. A damaged file is not changed."""
        connection = self._connection
        filled = is_journal(connection, self._path)
        if filled:
            identity(self._file)
            verify_tail(self._file)
            self.position = self._file.head()
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalUnavailable(
                f"The file system of {self._path} can't hold a write-ahead log",
                hint="Choose a state directory on a local disk",
                path=str(self._path),
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {16 * CHECKPOINT_BYTES}")
        create_schema(connection)
        connection.execute("PRAGMA busy_timeout = 0")  # from here on we wait ourselves, and only where we may
        return not filled

    def commit(self, entries: Sequence[Entry]) -> None:
        """Give the entries their places and force them to the disk: all, or none and JournalError is raised."""
        if self._broken is not None:
            raise self._broken
        began = perf_counter()
        try:
            self._sync_blobs()
            placed = self._heads.place(entries, self.position)
            if placed.rows:
                self._store(placed.rows, placed.changed)
        except (sqlite3.Error, OSError) as error:
            self.stats.failures += 1
            raise self._failure(error) from error
        self._heads.keep(placed)
        self.position += len(placed.rows)
        if placed.rows:
            self._pace_s = max(perf_counter() - began, self._pace_s * PACE_DECAY)

    def lead(self, entries: Sequence[Entry]) -> None:
        """The same without waiting for another program that keeps the file locked."""
        self._patient = False
        try:
            self.commit(entries)
        finally:
            self._patient = True

    def pace(self) -> float:
        """How many seconds commits took lately; infinitely many where the next one has more to do than to commit."""
        more = self._before_commit is not nothing or self._uncopied_bytes >= CHECKPOINT_BYTES or self._blobs_wait()
        return math.inf if more else self._pace_s

    def _store(self, rows: Sequence[Row], heads: dict[str, tuple[int, str]]) -> None:
        connection = self._connection
        self._begin()
        committing = False
        try:
            self._insert(_EVENTS, [(*row[:3], row.event.decode(), row.hash) for row in rows])
            self._insert(_HEADS, [(stream, *head) for stream, head in heads.items()])
            self._before_commit()
            committing = True
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            if committing:
                self._revoke()
            raise
        self.stats.commits += 1
        self.stats.events += len(rows)
        self._uncopied_bytes += sum(len(row.event) for row in rows)

    def _begin(self) -> None:
        give_up = perf_counter() + (BUSY_TIMEOUT_S if self._patient else 0.0)
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or perf_counter() >= give_up:
                    raise
            sleep(BUSY_POLL_S)

    def _insert(self, template: str, rows: Sequence[tuple[object, ...]]) -> None:
        if len(rows) == 1:  # whoever appends alone waits for this
            (row,) = rows
            self._connection.execute(_statement(template, 1, len(row)), row)
            return
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[start : start + ROWS_PER_STATEMENT]
            self._connection.execute(_statement(template, len(some), len(some[0])), tuple(chain.from_iterable(some)))

    def _revoke(self) -> None:
        """Overwrite the log's end after a commit that failed.

        The failed commit may stand there whole, with only its fsync missing. This process never reads it, but if it
        died now, the next one would take for committed what was reported as failed. Any commit starts at that place.
        """
        with contextlib.suppress(sqlite3.Error):
            self._begin()
            self._connection.execute("INSERT INTO streams VALUES ('', 0, '')")
            self._connection.execute("DELETE FROM streams WHERE stream = ''")
            self._connection.execute("COMMIT")
        with contextlib.suppress(sqlite3.Error):
            self._connection.rollback()

    def _failure(self, error: sqlite3.Error | OSError) -> JournalError:
        what, hint = "the disk failed", "Look at the system's log; repair or replace the disk"
        code = primary_code(error) if isinstance(error, sqlite3.Error) else 0
        if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in _NO_SPACE:
            what, hint = "the disk is full", f"Free space in {self._path.parent} and try again"
        elif code == sqlite3.SQLITE_BUSY:
            what = "another program keeps the file locked"
            hint = "Close the transaction that is open in another SQLite tool, and try again"
        elif isinstance(error, sqlite3.IntegrityError):
            self._broken = JournalUnavailable(
                f"Another program wrote to {self._path} behind the lock: {error}",
                hint="Stop that program, then open the engine again",
                path=str(self._path),
            )
            return self._broken
        elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return JournalCorrupt(
                f"The file {self._path} is broken: {error}", hint="Restore it from a copy", position=self.position + 1
            )
        return JournalUnavailable(
            f"The journal could not be written: {what} ({error}). Nothing of this append was kept",
            hint=f"{hint}. Events for which nobody waits are kept and tried again",
            path=str(self._path),
        )

    def tidy(self) -> None:
        """Copy the log into the file, if it grew; readers who stand in the way only put it off."""
        if self._uncopied_bytes >= CHECKPOINT_BYTES:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._uncopied_bytes = 0

    def merge(self) -> None:
        """Copy all of the log into the file, so that the file alone is the whole journal."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute("PRAGMA busy_timeout = 0")

    def close(self) -> None:
        """Merge and close."""
        self.merge()
        self._connection.close()
