"""A journal in memory: a verified fake, for tests and simulations.

It passes the same conformance suite as the real ones, uses no thread and no clock, and so is deterministic under a
seeded scheduler. A :class:`MemoryDisk` outlives the journals that are opened on it, as a file would; its ``crash``
loses what was not synced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from statefork.journal.batch import Entry, Heads, Load, Row, fail, loss, prepare
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.checkpoint import Checkpoint, Stored, check_checkpoint, check_fold, foreign, not_there, unused
from statefork.journal.codec import Chain, Codec, digest_of_heads
from statefork.journal.errors import JournalError, JournalUnavailable, StateLocked, closed
from statefork.journal.events import ENGINE_STREAM, Event, JournalCreated
from statefork.journal.limits import Limits
from statefork.journal.live import Feed
from statefork.journal.log import Append, Recorded

CHUNK_EVENTS = 64
"""Reading lets others run once in so many events."""

Hook = Callable[[], Awaitable[None]]


class MemoryDisk:
    """What a crash leaves: the synced events, and as many of the others as the simulation wants."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.synced = 0  # events that no crash can lose
        self.blobs = MemoryBlobs()
        self.checkpoints: dict[str, Stored] = {}
        self.holder: MemoryJournal | None = None

    def crash(self, *, keep: int = 0) -> None:
        """The process dies: the open journal is dead, and of the events only the first ``keep`` survive, but at least
        the synced ones."""
        if self.holder is not None:
            self.holder.die()
        del self.rows[max(self.synced, keep) :]
        self.blobs.crash()

    def head_of(self, stream: str) -> tuple[int, str] | None:
        """The (version, hash) of a stream's last event."""
        return next(((row.version, row.hash) for row in reversed(self.rows) if row.stream == stream), None)


class MemoryJournal:
    """See :class:`statefork.journal.log.Journal`; made by :func:`open_memory_journal`."""

    def __init__(self, disk: MemoryDisk, limits: Limits, before_commit: Hook | None, after_commit: Hook | None) -> None:
        self._disk = disk
        self._limits = limits
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._codec = Codec()
        self._heads = Heads(disk.head_of)
        self._feed = Feed(len(disk.rows), limits)
        self._queue: deque[Entry] = deque()
        self._load = Load(limits)
        self._turn = anyio.Lock()  # held by the one who writes
        self._failing = False  # the last write failed: riders wait for the next that does not
        self._dead = False

    def create(self, journal_id: str, at: float) -> None:
        """Record the identity, as the first event of all."""
        created = JournalCreated(at=at, journal=journal_id, statefork="memory")
        first = Append(ENGINE_STREAM, (created,))
        self._place([prepare((first,), self._codec, self._limits, durable=False)])
        self._disk.synced = len(self._disk.rows)

    @property
    def id(self) -> str:
        """The journal's identity."""
        first = self._codec.decode(self._disk.rows[0].event, position=1)
        assert isinstance(first, JournalCreated)
        return first.journal

    async def append(self, *appends: Append, durable: bool = True) -> int:
        """Append all or nothing; with ``durable`` return the last position, when a crash can't lose it, else 0 at once.

        Raises ExpectationFailed, JournalUnavailable, LimitExceeded, EventInvalid; nothing was kept then.
        """
        await checkpoint_if_cancelled()
        if not durable:
            self._put(prepare(appends, self._codec, self._limits, durable=False))
            self._ride_along()
            await checkpoint()
            return 0
        return await self._settle(prepare(appends, self._codec, self._limits, durable=True))

    def ride(self, stream: str, *events: Event) -> None:
        """Queue events that nobody waits for. Raises LimitExceeded, EventInvalid, JournalUnavailable when closed."""
        self._put(prepare((Append(stream, events),), self._codec, self._limits, durable=False))
        self._ride_along()

    async def flush(self) -> int:
        """Wait until a crash can't lose anything queued so far; return the position of the last event of it."""
        await checkpoint_if_cancelled()
        return await self._settle(Entry(durable=True))

    def read(self, *, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
        """Committed events after a position, in order. Raises JournalUnavailable when closed."""
        return _MemoryScan(self, after, stream, limit)

    async def head(self) -> int:
        """Position of the last committed event."""
        await checkpoint()
        return len(self._disk.rows)

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream."""
        await checkpoint()
        return self._heads.get(stream)[0]

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""
        await checkpoint()
        return sorted({row.stream for row in self._disk.rows})

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position."""
        await checkpoint()
        if self._dead:
            raise closed()
        heads = {row.stream: (row.version, row.hash) for row in self._disk.rows[:at]}
        return digest_of_heads([(stream, *head) for stream, head in sorted(heads.items())])

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold, if it belongs to this journal."""
        await checkpoint()
        check_fold(fold)
        stored = self._disk.checkpoints.get(fold)
        if stored is None:
            return None
        if why := foreign(stored, self.id, self._hash_at(stored.checkpoint.position)):
            unused(f"of {fold}", why)
            return None
        return stored.checkpoint

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what a fold gave. Raises JournalUnavailable, LimitExceeded, ValueError."""
        check_checkpoint(checkpoint, self._limits)
        if checkpoint.position > self._disk.synced:
            await self.flush()
        digest = self._hash_at(checkpoint.position)
        if digest is None:
            raise not_there(checkpoint.position, len(self._disk.rows))
        self._disk.checkpoints[checkpoint.fold] = Stored(checkpoint=checkpoint, journal=self.id, hash=digest)

    def _hash_at(self, position: int) -> str | None:
        if self._dead:
            raise closed()
        rows = self._disk.rows
        return rows[position - 1].hash if 0 < position <= len(rows) else None

    def subscribe(self, *, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Recorded]]:
        """All committed events after a position, then live ones; ends when the journal is closed."""
        return self._feed.follow(lambda after: self.read(after=after), after)

    def row_after(self, position: int, stream: str | None) -> Row | None:
        """The next committed event as it is stored."""
        if self._dead:
            raise closed()
        rows = self._disk.rows
        while position < len(rows):
            if stream is None or rows[position].stream == stream:
                return rows[position]
            position += 1
        return None

    def hash_before(self, stream: str, version: int) -> str | None:
        """The hash of the event before one of a stream."""
        rows = self._disk.rows
        return next((row.hash for row in rows if row.stream == stream and row.version == version - 1), None)

    def die(self) -> None:
        """Closed without writing what is queued."""
        self._dead = True
        self._disk.holder = None
        self._feed.close()

    async def aclose(self) -> int:
        """Write what is queued and close; return how many events could not be written. Idempotent."""
        lost = 0
        if not self._dead:
            with anyio.CancelScope(shield=True):
                try:
                    await self.flush()
                except JournalError:
                    lost = sum(entry.events for entry in self._queue)
            self.die()
        return lost

    def _put(self, entry: Entry) -> None:
        if self._dead:
            raise closed()
        self._load.add(entry, None)
        self._queue.append(entry)

    def _ride_along(self) -> None:
        """What rides is visible at once, though not safe; behind a writer, or behind a failure, it waits its turn."""
        if not (self._failing or self._turn.statistics().locked):
            self._place_all([self._queue.popleft()])

    async def _settle(self, entry: Entry) -> int:
        self._put(entry)
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if not entry.settled:
                    await self._write()
        if entry.error is not None:
            raise entry.error
        return entry.position

    async def _write(self) -> None:
        """The group commit: everything that is queued now."""
        batch = list(self._queue)
        self._queue.clear()
        try:
            if self._before_commit is not None:
                await self._before_commit()
            if self._dead:
                raise closed()
        except BaseException as error:
            self._failing = True
            durable = [entry for entry in (*batch, *self._queue) if entry.durable]
            self._queue = deque(entry for entry in (*batch, *self._queue) if not entry.durable)
            fail(durable, _failure(error))
            self._load.drop(durable)
            if not isinstance(error, JournalError | OSError):
                raise
            return
        self._failing = False
        self._disk.blobs.sync()
        self._place_all(batch)
        self._disk.synced = len(self._disk.rows)
        try:
            if self._after_commit is not None:
                await self._after_commit()
        except (JournalError, OSError) as error:
            fail([entry for entry in batch if entry.durable], _failure(error))
        finally:
            for entry in batch:
                entry.settled = True
        if not any(entry.durable for entry in self._queue):
            self._place_all(self._queue)
            self._queue.clear()

    def _place_all(self, entries: Collection[Entry]) -> None:
        self._place(entries)
        self._load.drop(entries)

    def _place(self, entries: Iterable[Entry]) -> None:
        placed = self._heads.place(entries, len(self._disk.rows))
        self._disk.rows += placed.rows
        self._heads.keep(placed)
        self._feed.advance(len(self._disk.rows))


class _MemoryScan:
    """The events after a position, each checked when it is read."""

    def __init__(self, journal: MemoryJournal, after: int, stream: str | None, limit: int | None) -> None:
        self._journal = journal
        self._after = after
        self._stream = stream
        self._left = limit
        self._count = 0
        self._chain = Chain(journal.hash_before)
        self._codec = Codec()

    def __aiter__(self) -> _MemoryScan:
        return self

    async def __anext__(self) -> Recorded:
        if self._count % CHUNK_EVENTS == 0:
            await checkpoint()
        self._count += 1
        row = self._journal.row_after(self._after, self._stream) if self._left != 0 else None
        if row is None:
            raise StopAsyncIteration
        if self._left is not None:
            self._left -= 1
        position, stream, version, data, digest = row
        self._chain.check(position, stream, version, data, digest)
        self._after = position
        event = self._codec.decode(data, position=position)
        return Recorded(position=position, stream=stream, version=version, event=event, hash=digest)


@asynccontextmanager
async def open_memory_journal(
    disk: MemoryDisk | None = None,
    *,
    journal_id: str = "memory",
    at: float = 0.0,
    limits: Limits | None = None,
    before_commit: Hook | None = None,
    after_commit: Hook | None = None,
) -> AsyncIterator[MemoryJournal]:
    """Open a journal on a memory disk (a new one by default); an empty disk gets the identity ``journal_id``.

    ``before_commit`` is awaited before anything of a durable append is kept, ``after_commit`` when it is kept and not
    yet reported: while they wait the disk is slow; what they raise (JournalError, OSError) is a write that failed, or
    a reply that was lost. Raises StateLocked while another journal is open on the disk.
    """
    disk = disk or MemoryDisk()
    if disk.holder is not None:
        raise StateLocked("This memory disk is open for writing already", hint="Close the other journal first")
    journal = disk.holder = MemoryJournal(disk, limits or Limits(), before_commit, after_commit)
    if not disk.rows:
        journal.create(journal_id, at)
    try:
        yield journal
    except BaseException as error:
        if lost := await journal.aclose():
            error.add_note(str(loss(lost, None)))
        raise
    if lost := await journal.aclose():
        raise loss(lost, None)


def _failure(error: BaseException) -> JournalError:
    if isinstance(error, JournalError):
        return error
    return JournalUnavailable(
        f"The journal could not be written: {error!r}. Nothing of this append was kept", hint="Try again"
    )
