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
import importlib.metadata
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TypedDict

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from statefork.journal.batch import Entry, loss, prepare
from statefork.journal.checkpoint import Checkpoint, check_checkpoint
from statefork.journal.codec import Codec
from statefork.journal.commit import GroupCommit
from statefork.journal.errors import JournalError
from statefork.journal.eventfile import EventFile
from statefork.journal.events import ENGINE_STREAM, Event, JournalCreated
from statefork.journal.limits import Limits
from statefork.journal.live import Feed
from statefork.journal.lock import StateLock, sync_folder
from statefork.journal.log import Append, Recorded
from statefork.journal.parking import parking
from statefork.journal.reading import Scan, SqliteReader, connect_for_reading, identity
from statefork.journal.writer import Stats, Writer, nothing


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
        self._feed = Feed(writer.position, limits)
        self._parking = parking()
        self._group = GroupCommit(writer.commit, writer.lead, self._settled, writer.tidy, writer.pace, limits)

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
        await self._parking.notice()
        entry = prepare(appends, self._codec, self._limits, durable=durable)
        if durable:
            return await self._settle(entry)
        self._group.put(entry)
        await checkpoint()
        return 0

    def ride(self, stream: str, *events: Event) -> None:
        """Queue events that nobody waits for. Raises LimitExceeded, EventInvalid, JournalUnavailable when closed."""
        self._group.put(prepare((Append(stream, events),), self._codec, self._limits, durable=False))

    async def flush(self) -> int:
        """Wait until everything queued so far is on disk; return the position of the last event of it."""
        await self._parking.notice()
        if self._group.idle:
            position = self._writer.position  # others may go on while we yield
            await checkpoint()
            return position
        return await self._settle(Entry(durable=True))

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
        entry.spot = self._parking.spot()
        led = False
        if self._group.put(entry):
            try:
                await self._parking.turn()
            finally:
                led = self._group.lead(entry)
                self._feed.advance(self._writer.position)
        if not led:
            await self._parking.wait(entry.spot)
        if entry.error is not None:
            raise entry.error
        return entry.position

    def _settled(self, entries: Sequence[Entry]) -> None:
        """In the writer's thread: tell the event loop."""
        position = self._writer.position
        self._parking.post(lambda: self._tell(entries, position))

    def _tell(self, entries: Sequence[Entry], position: int) -> None:
        wake = self._parking.wake
        for entry in entries:
            if entry.durable:
                wake(entry.spot)
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
    sync_blobs: Callable[[], None] = nothing,
    blobs_wait: Callable[[], bool] = lambda: False,
    before_commit: Callable[[], None] = nothing,
    lock: bool = True,
) -> AbstractAsyncContextManager[SqliteJournal]:
    """Open a journal file for writing; a file that does not exist is made, with an identity of its own.

    ``sync_blobs`` runs before each commit and must leave on disk what the events refer to; where ``blobs_wait`` says
    that it has something to do, it runs in the writer's thread.
    ``before_commit`` runs there within each transaction: what it raises (OSError, sqlite3.Error) counts as a failure of
    the disk, and while it blocks the disk is slow. Without ``lock`` the caller holds the directory's StateLock.
    Leaving the context writes what is queued; events that could not be written raise JournalUnavailable.
    Raises StateLocked, JournalCorrupt, JournalUnavailable.
    """
    file = Path(path).absolute()
    held = StateLock(file.parent) if lock else contextlib.nullcontext()
    hooks: _Hooks = {"sync_blobs": sync_blobs, "blobs_wait": blobs_wait, "before_commit": before_commit}
    return _opened(held, lambda: _open(file, clock, hooks), limits or Limits())


class _Hooks(TypedDict):
    sync_blobs: Callable[[], None]
    blobs_wait: Callable[[], bool]
    before_commit: Callable[[], None]


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


def _open(path: Path, clock: Callable[[], float], hooks: _Hooks) -> tuple[Writer, SqliteReader, EventFile]:
    with contextlib.ExitStack() as stack:
        writer = Writer(path, **hooks)
        stack.callback(writer.close)
        if writer.fresh:
            created = JournalCreated(
                at=clock(), journal=secrets.token_hex(8), statefork=importlib.metadata.version("statefork")
            )
            first = Append(ENGINE_STREAM, (created,))
            writer.commit([prepare((first,), Codec(), Limits(), durable=False)])
            writer.merge()  # so that whoever loses the log has still the same journal, and not a new one
            sync_folder(path.parent)
        connection = connect_for_reading(path, stack)
        file = EventFile(connection, path, Codec())
        stack.callback(file.close)
        reader = SqliteReader(file, identity(file), path)
        stack.pop_all()
    return writer, reader, file
