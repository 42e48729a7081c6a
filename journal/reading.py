"""Reading a journal: while its engine runs or long after, from any process, also from a directory that is read-only."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from statefork.journal.checkpoint import Checkpoint, Stored, foreign, load, not_there, save, unused
from statefork.journal.codec import Chain, Codec, corrupt
from statefork.journal.errors import JournalError, JournalUnavailable, StateMissing
from statefork.journal.eventfile import Chunk, EventFile, is_journal, primary_code, translated
from statefork.journal.events import JournalCreated
from statefork.journal.log import Recorded

CHUNK_EVENTS = 512
TAIL_EVENTS = 256
"""How many of the last events are verified when a journal is opened for writing; reading verifies all that it reads."""

BUSY_TIMEOUT_S = 5.0


class Chunked(Protocol):
    """What events are read from: blocking."""

    def head(self) -> int:
        """The last position."""
        ...

    def chain(self) -> Chain:
        """A fresh check for a read that begins on it."""
        ...

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
        """Up to ``count`` checked events after a position. See :class:`statefork.journal.eventfile.EventFile`."""
        ...


class Scan:
    """The events after a position, read in chunks by a worker thread. May be left at any point without closing."""

    def __init__(self, file: Chunked, after: int, stream: str | None, limit: int | None, *, check_end: bool) -> None:
        self._file = file
        self._after = after
        self._stream = stream
        self._left = limit
        self._check_end = check_end
        self._chain = file.chain()
        self._start: int | None = None  # version of the stream's last event that was read
        self._buffer: deque[Recorded] = deque()
        self._error: JournalError | None = None
        self._ended = False

    def __aiter__(self) -> Scan:
        return self

    async def __anext__(self) -> Recorded:
        if not self._buffer:
            await self._fill()
        if self._buffer:
            return self._buffer.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def _fill(self) -> None:
        if self._ended or self._error is not None:
            return
        count = CHUNK_EVENTS if self._left is None else min(CHUNK_EVENTS, self._left)
        if count <= 0:
            self._ended = True
            return
        chunk = await run_sync(self._read, count)  # if asyncio cancels us while the thread reads, nothing has moved
        self._chain.tails |= chunk.tails
        self._error = chunk.error
        self._ended = chunk.ended
        self._buffer.extend(chunk.events)
        if chunk.events:
            self._after, self._start = chunk.events[-1].position, chunk.events[-1].version
        if self._left is not None:
            self._left -= len(chunk.events)

    def _read(self, count: int) -> Chunk:
        return self._file.chunk(
            self._after, self._stream, count, self._chain, start=self._start, check_end=self._check_end
        )


class SqliteReader:
    """A journal file open for reading. See :class:`statefork.journal.log.Reader`."""

    def __init__(self, file: EventFile, journal_id: str, path: Path) -> None:
        self._file = file
        self._id = journal_id
        self._path = path
        self._alone = not _index(path).exists()

    @property
    def id(self) -> str:
        """The journal's identity."""
        return self._id

    def read(self, *, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
        """Committed events after a position, in order. Raises JournalCorrupt, JournalUnavailable."""
        return Scan(self._file, after, stream, limit, check_end=True)

    @property
    def outdated(self) -> bool:
        """Whether an engine has opened what nobody had open: what it writes is seen by who opens the journal anew."""
        return self._alone and _index(self._path).exists()

    async def head(self) -> int:
        """Position of the last committed event."""
        return await run_sync(self._file.head)

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream."""
        return await run_sync(self._file.stream_version, stream)

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""
        return await run_sync(self._file.streams)

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position."""
        return await run_sync(self._file.heads_digest, at)

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold, if it is whole and belongs to this journal."""
        return await run_sync(self._load, fold)

    async def keep(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint whose event is on disk; for the journal's writer. Raises JournalUnavailable, ValueError."""
        await run_sync(self._save, checkpoint)

    def _load(self, fold: str) -> Checkpoint | None:
        stored = load(self._path, fold)
        if stored is None:
            return None
        if why := foreign(stored, self._id, self._file.hash_at(stored.checkpoint.position)):
            unused(f"of {fold}", why)
            return None
        return stored.checkpoint

    def _save(self, checkpoint: Checkpoint) -> None:
        digest = self._file.hash_at(checkpoint.position)
        if digest is None:
            raise not_there(checkpoint.position, self._file.head())
        save(self._path, Stored(checkpoint=checkpoint, journal=self._id, hash=digest))


def identity(file: Chunked) -> str:
    """The journal's id, from its first event. Raises JournalCorrupt."""
    first = file.chunk(0, None, 1, file.chain())
    if first.error is not None:
        raise first.error
    if not first.events or not isinstance(first.events[0].event, JournalCreated):
        raise corrupt(1, "a journal begins with the event that gives it its identity")
    return first.events[0].event.journal


def verify_tail(file: Chunked) -> None:
    """Check the last events, and that they are the last. Raises JournalCorrupt."""
    after = max(file.head() - TAIL_EVENTS, 0)
    tail = file.chunk(after, None, TAIL_EVENTS + 1, file.chain())
    if tail.error is not None:
        raise tail.error


@asynccontextmanager
async def open_sqlite_reader(path: Path) -> AsyncIterator[SqliteReader]:
    """Open a journal file for reading only. Raises StateMissing, JournalCorrupt, JournalUnavailable.

    A damaged journal can be opened as long as its beginning is sound: reading gives what comes before the damage.
    """
    with ExitStack() as stack:
        reader = await run_sync(_open, path, stack)
        try:
            yield reader
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(stack.pop_all().close)


def _open(path: Path, stack: ExitStack) -> SqliteReader:
    try:
        path.stat()
        with translated(path, 0):
            connection = connect_for_reading(path, stack)
            filled = is_journal(connection, path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    except OSError as error:
        raise JournalUnavailable(
            f"The journal {path} can't be read: {error.strerror}",
            hint="Give read permission to all of the state directory, or do it as the user who ran the engine",
            path=str(path),
        ) from error
    file = EventFile(connection, path, Codec())
    stack.callback(file.close)
    if not filled:
        raise missing(path)
    return SqliteReader(file, identity(file), path)


def missing(path: Path) -> StateMissing:
    """The error for a place where there is nothing to read."""
    return StateMissing(
        f"There is no journal at {path}",
        hint="Check the path of the state directory; an engine makes a journal when it first opens one",
        path=str(path),
    )


def connect_for_reading(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """SQLite needs an index file beside a journal to share it with a writer. Where there is none, nobody writes.

    The journal's owner makes one. Others do not, also where they may: he could not open theirs, and so not his journal.
    Raises OSError for what may not be read.
    """
    index = _index(path)
    if index.exists() or os.geteuid() in (0, path.stat().st_uid):  # for root SQLite gives it to the owner
        try:
            return _try(f"{path.absolute().as_uri()}?mode=ro")
        except sqlite3.OperationalError as error:
            if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        for file in (path, index):
            if file.exists():
                file.open("rb").close()
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:  # its engine was killed: what is in there must be merged, so not in place
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statefork-")))
        shutil.copyfile(path, folder / path.name)
        shutil.copyfile(log, folder / log.name)
        return _try(f"{(folder / path.name).as_uri()}?mode=ro")
    return _try(f"{path.absolute().as_uri()}?mode=ro&immutable=1")


def _index(path: Path) -> Path:
    return path.with_name(path.name + "-shm")


def _try(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
