"""The default journal: one SQLite file, readable with any SQLite tool.

Durability: write-ahead log with ``synchronous=FULL``, so that an append that returned survives a crash of the process
and of the operating system; a torn end of the log is cut by SQLite at the last whole commit. One thread writes (see
:mod:`statefork.journal.commit`); reading has a connection of its own and never waits for it.

Cancellation: an append looks at it once, before it queues anything. From then on it waits for the disk, shielded, and
reports what happened; the cancellation is delivered at the caller's next checkpoint. So an append that raises the
cancellation wrote nothing. (asyncio's own ``Task.cancel`` is not held back by a shield: whoever uses it on an append
must read back what became of it.)
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled, current_token
from anyio.to_thread import run_sync

from statefork.journal.batch import Entry, Heads, Row, loss, prepare
from statefork.journal.checkpoint import Checkpoint, check_checkpoint
from statefork.journal.codec import Codec
from statefork.journal.commit import GroupCommit
from statefork.journal.errors import JournalCorrupt, JournalError, JournalUnavailable
from statefork.journal.eventfile import EventFile, is_journal, primary_code, translated
from statefork.journal.events import ENGINE_STREAM, Event, JournalCreated
from statefork.journal.limits import Limits
from statefork.journal.live import Feed
from statefork.journal.lock import StateLock, sync_folder
from statefork.journal.log import Append, Recorded
from statefork.journal.reading import BUSY_TIMEOUT_S, Scan, SqliteReader, connect_for_reading, identity, verify_tail
from statefork.journal.schema import create_schema

CHECKPOINT_BYTES = 4 * 1024 * 1024
"""After so many bytes of events the writer copies the log into the file, when nobody waits for it."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_INSERT = "INSERT INTO events (position, stream, version, event, hash) VALUES (?, ?, ?, ?, ?)"
_SET_HEAD = "INSERT OR REPLACE INTO streams (stream, version, hash) VALUES (?, ?, ?)"


class Stats(msgspec.Struct, kw_only=True):
    """What a journal's writer did since it was opened."""

    commits: int = 0  # each waits once for the disk
    events: int = 0
    failures: int = 0


class Writer:
    """The writing connection. Blocking; used by one thread at a time."""

    def __init__(self, path: Path, *, sync_blobs: Callable[[], None], before_commit: Callable[[], None]) -> None:
        self._path = path
        self._sync_blobs = sync_blobs
        self._before_commit = before_commit
        self._uncopied_bytes = 0
        self._broken: JournalError | None = None
        self.position = 0
        self.stats = Stats()
        with translated(path, 0):
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
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
        return not filled

    def commit(self, entries: Sequence[Entry]) -> None:
        """Give the entries their places and force them to the disk: all, or none and JournalError is raised."""
        if self._broken is not None:
            raise self._broken
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

    def _store(self, rows: Sequence[Row], heads: dict[str, tuple[int, str]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        committing = False
        try:
            connection.executemany(_INSERT, [(*row[:3], row.event.decode(), row.hash) for row in rows])
            connection.executemany(_SET_HEAD, [(stream, *head) for stream, head in heads.items()])
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

    def _revoke(self) -> None:
        """Overwrite the log's end after a commit that failed.

        The failed commit may stand there whole, with only its fsync missing. This process never reads it, but if it
        died now, the next one would take for committed what was reported as failed. Any commit starts at that place.
        """
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("BEGIN IMMEDIATE")
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

    def close(self) -> None:
        """Merge the log into the file, so that the file alone is the whole journal."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._connection.close()


class SqliteJournal:
    """A journal file open for writing. See :class:`statefork.journal.log.Journal`; made by :func:`open_sqlite_journal`.

    ``ride`` may be called from any thread, everything else on the event loop that opened the journal.
    """

    def __init__(self, writer: Writer, reader: SqliteReader, file: EventFile, limits: Limits) -> None:
        self._writer = writer
        self._reader = reader
        self._file = file
        self._limits = limits
        self._codec = Codec()
        self._feed = Feed(writer.position)
        native: Any = current_token().native_token
        self._post: Callable[[Callable[[], None]], object] = (
            native.run_sync_soon if hasattr(native, "run_sync_soon") else native.call_soon_threadsafe
        )
        self._group = GroupCommit(writer.commit, self._settled, writer.tidy, limits)

    @property
    def id(self) -> str:
        """The journal's identity."""
        return self._reader.id

    @property
    def fault(self) -> JournalError | None:
        """Why the last commit failed; None when it did not."""
        return self._group.fault

    @property
    def stats(self) -> Stats:
        """What the writer did since the journal was opened."""
        return self._writer.stats

    async def append(self, *appends: Append, durable: bool = True) -> int:
        """Append all or nothing; with ``durable`` return the last position, when it is on disk, else 0 at once.

        Raises ExpectationFailed, JournalUnavailable, LimitExceeded, EventInvalid; nothing was kept then.
        """
        await checkpoint_if_cancelled()
        if not durable:
            self._group.put(prepare(appends, self._codec, self._limits, done=None))
            await checkpoint()
            return 0
        return await self._settle(prepare(appends, self._codec, self._limits, done=anyio.Event()))

    def ride(self, stream: str, *events: Event) -> None:
        """Queue events that nobody waits for. Raises LimitExceeded, EventInvalid, JournalUnavailable when closed."""
        self._group.put(prepare((Append(stream, events),), self._codec, self._limits, done=None))

    async def flush(self) -> int:
        """Wait until everything queued so far is on disk; return the position of the last event of it."""
        await checkpoint_if_cancelled()
        if self._group.idle:
            position = self._writer.position  # others may go on while we yield
            await checkpoint()
            return position
        return await self._settle(Entry((), done=anyio.Event()))

    def read(self, *, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
        """Committed events after a position, in order. Raises JournalCorrupt, JournalUnavailable when closed."""
        return self._reader.read(after=after, stream=stream, limit=limit)

    async def head(self) -> int:
        """Position of the last committed event."""
        await checkpoint()
        return self._writer.position

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream."""
        return await self._reader.stream_version(stream)

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""
        return await self._reader.streams()

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position."""
        return await self._reader.heads_digest(at=at)

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold, if it is whole and belongs to this journal."""
        return await self._reader.checkpoint(fold)

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what a fold gave. Raises JournalUnavailable, LimitExceeded, ValueError."""
        check_checkpoint(checkpoint, self._limits)
        if checkpoint.position > self._writer.position:
            await self.flush()
        await self._reader.keep(checkpoint)

    def subscribe(self, *, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Recorded]]:
        """All committed events after a position, then live ones; ends when the journal is closed."""
        return self._feed.follow(lambda after: Scan(self._file, after, None, None, check_end=False), after)

    async def _settle(self, entry: Entry) -> int:
        assert entry.done is not None
        self._group.put(entry)
        with anyio.CancelScope(shield=True):
            await entry.done.wait()
        if entry.error is not None:
            raise entry.error
        return entry.position

    def _settled(self, entries: Sequence[Entry]) -> None:
        """In the writer's thread: tell the event loop. Where it has ended, nobody waits any more."""
        position = self._writer.position
        with contextlib.suppress(RuntimeError):  # asyncio's error for a closed loop; trio's is a subclass
            self._post(lambda: self._tell(entries, position))

    def _tell(self, entries: Sequence[Entry], position: int) -> None:
        for entry in entries:
            if entry.done is not None:
                entry.done.set()
        self._feed.advance(position)

    async def aclose(self) -> int:
        """Write what is queued and close; return how many events could not be written. Idempotent."""
        with anyio.CancelScope(shield=True):
            lost = await run_sync(self._group.close)
            self._feed.advance(self._writer.position)
            self._feed.close()
            await run_sync(self._close)
        return lost

    def _close(self) -> None:
        self._file.close()
        self._writer.close()


def open_sqlite_journal(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.time,
    sync_blobs: Callable[[], None] = lambda: None,
    before_commit: Callable[[], None] = lambda: None,
    lock: bool = True,
) -> AbstractAsyncContextManager[SqliteJournal]:
    """Open a journal file for writing; a file that does not exist is made, with an identity of its own.

    ``sync_blobs`` runs in the writer's thread before each commit and must leave on disk what the events refer to.
    ``before_commit`` runs there within each transaction: what it raises (OSError, sqlite3.Error) counts as a failure of
    the disk, and while it blocks the disk is slow. Without ``lock`` the caller holds the directory's StateLock.
    Leaving the context writes what is queued; events that could not be written raise JournalUnavailable.
    Raises StateLocked, JournalCorrupt, JournalUnavailable.
    """
    file = Path(path).absolute()
    held = StateLock(file.parent) if lock else contextlib.nullcontext()
    return _opened(held, lambda: _open(file, clock, sync_blobs, before_commit), limits or Limits())


@asynccontextmanager
async def _opened(
    lock: AbstractContextManager[object],
    open_file: Callable[[], tuple[Writer, SqliteReader, EventFile]],
    limits: Limits,
) -> AsyncIterator[SqliteJournal]:
    with lock:
        opened = SqliteJournal(*await run_sync(open_file), limits)
        try:
            yield opened
        except BaseException as error:
            if lost := await opened.aclose():
                error.add_note(str(loss(lost, opened.fault)))
            raise
        if lost := await opened.aclose():
            raise loss(lost, opened.fault)


def _open(
    path: Path, clock: Callable[[], float], sync_blobs: Callable[[], None], before_commit: Callable[[], None]
) -> tuple[Writer, SqliteReader, EventFile]:
    with contextlib.ExitStack() as stack:
        writer = Writer(path, sync_blobs=sync_blobs, before_commit=before_commit)
        stack.callback(writer.close)
        if writer.fresh:
            created = JournalCreated(
                at=clock(), journal=secrets.token_hex(8), statefork=importlib.metadata.version("statefork")
            )
            first = Append(ENGINE_STREAM, (created,))
            writer.commit([prepare((first,), Codec(), Limits(), done=None)])
            sync_folder(path.parent)
        connection = connect_for_reading(path, stack)
        file = EventFile(connection, path, Codec())
        stack.callback(file.close)
        reader = SqliteReader(file, identity(file), path)
        stack.pop_all()
    return writer, reader, file
