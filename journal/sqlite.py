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
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TypedDict

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from statefork.journal.batch import prepare
from statefork.journal.checkpoint import Checkpoint, check_checkpoint
from statefork.journal.codec import Codec
from statefork.journal.eventfile import EventFile
from statefork.journal.events import ENGINE_STREAM, JournalCreated
from statefork.journal.grouped import GroupedJournal, closing
from statefork.journal.limits import Limits
from statefork.journal.lock import StateLock, sync_folder
from statefork.journal.log import Append, Recorded
from statefork.journal.reading import Scan, SqliteReader, connect_for_reading, identity
from statefork.journal.writer import Writer, nothing


class SqliteJournal(GroupedJournal[Writer, SqliteReader]):
    """A journal file open for writing. See :class:`statefork.journal.log.Journal`; made by :func:`open_sqlite_journal`.

    ``ride`` may be called from any thread, everything else on the event loop that opened the journal.
    """

    def __init__(self, writer: Writer, reader: SqliteReader, file: EventFile, limits: Limits) -> None:
        super().__init__(writer, reader, limits, lead=writer.lead, tidy=writer.tidy, pace=writer.pace)
        self._file = file

    async def head(self) -> int:
        """Position of the last committed event."""
        await checkpoint()
        return self._writer.position

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what a fold gave. Raises JournalUnavailable, LimitExceeded, ValueError."""
        check_checkpoint(checkpoint, self._limits)
        if checkpoint.position > self._writer.position:
            await self.flush()
        await self._reader.keep(checkpoint)

    def subscribe(self, *, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Recorded]]:
        """All committed events after a position, then live ones; ends when the journal is closed."""
        return self._feed.follow(lambda after: Scan(self._file, after, None, None, check_end=False), after)

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
        async with closing(SqliteJournal(*await run_sync(open_file), limits)) as opened:
            yield opened


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
