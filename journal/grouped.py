"""What journals have in common in which one thread writes: appends are queued, committed in groups, and waited for.

Cancellation is as told in :mod:`statefork.journal.sqlite`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from statefork.journal.batch import Entry, loss, prepare
from statefork.journal.checkpoint import Checkpoint
from statefork.journal.codec import Codec
from statefork.journal.commit import GroupCommit
from statefork.journal.errors import JournalError
from statefork.journal.events import Event
from statefork.journal.limits import Limits
from statefork.journal.live import Feed
from statefork.journal.log import Append, Recorded
from statefork.journal.parking import parking
from statefork.journal.writer import Stats


class CommitWriter(Protocol):
    """What writes, in its own thread."""

    position: int
    """Of the last committed event."""

    stats: Stats
    """What it did since the journal was opened."""

    def commit(self, entries: Sequence[Entry]) -> None:
        """As for :class:`statefork.journal.commit.GroupCommit`."""


class CommittedReader(Protocol):
    """What reads committed events, over a connection of its own."""

    @property
    def id(self) -> str:
        """The journal's identity."""

    def read(self, *, after: int, stream: str | None, limit: int | None) -> AsyncIterator[Recorded]:
        """As :meth:`statefork.journal.log.Journal.read`; so are the others."""

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream."""

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position."""

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold."""


W = TypeVar("W", bound=CommitWriter)
R = TypeVar("R", bound=CommittedReader)
J = TypeVar("J", bound="GroupedJournal[Any, Any]")


class GroupedJournal(ABC, Generic[W, R]):
    """A journal open for writing. ``ride`` may be called from any thread, everything else on its event loop.

    ``lead``, ``tidy`` and ``pace`` are as for :class:`statefork.journal.commit.GroupCommit`.
    """

    def __init__(
        self,
        writer: W,
        reader: R,
        limits: Limits,
        *,
        lead: Callable[[Sequence[Entry]], None],
        tidy: Callable[[], None],
        pace: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._limits = limits
        self._codec = Codec()
        self._feed = Feed(writer.position, limits)
        self._parking = parking()
        self._group = GroupCommit(writer.commit, lead, self._settled, tidy, pace, limits)

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

        Raises ExpectationFailed, ClaimLost, JournalUnavailable, LimitExceeded, EventInvalid: nothing was kept then;
        and, where a server writes, AppendUnknown: reading, once that is possible again, tells what became of it.
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
        """Committed events after a position, in order. Raises JournalCorrupt, JournalUnavailable."""
        return self._reader.read(after=after, stream=stream, limit=limit)

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

    @abstractmethod
    def _close(self) -> None:
        """Close what reads and what writes. In a thread of its own."""


@asynccontextmanager
async def closing(opened: J) -> AsyncIterator[J]:
    """Close a journal at the end; events that could not be written raise JournalUnavailable."""
    try:
        yield opened
    except BaseException as error:
        if lost := await opened.aclose():
            error.add_note(str(loss(lost, opened.fault)))
        raise
    if lost := await opened.aclose():
        raise loss(lost, opened.fault)
