"""The journal in a PostgreSQL database, for engines on several machines. Needs the extra ``statefork[postgres]``.

Durability is the server's: a commit is acknowledged when it is on the server's disk (``synchronous_commit``, which is
switched on where it is off). One thread writes, as for the SQLite file; the database gives the positions, one commit
after the other, so that readers never see a hole. How, and what becomes of appends whose reply is lost, is told in
:mod:`statefork.journal.postgres_schema` and :mod:`statefork.journal.postgres_writer`.

Cancellation is as in :mod:`statefork.journal.sqlite`: an append that raises it wrote nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from statefork.journal.batch import Entry, own_copy
from statefork.journal.checkpoint import Checkpoint, check_checkpoint
from statefork.journal.codec import GENESIS, Codec, link
from statefork.journal.errors import ClaimLost, JournalUnavailable
from statefork.journal.events import ENGINE_STREAM, JournalCreated, engine_stream
from statefork.journal.grouped import GroupedJournal, closing
from statefork.journal.limits import Limits
from statefork.journal.live import Feed
from statefork.journal.log import Recorded
from statefork.journal.postgres_claims import CLAIM_S, Claim, Holder, lost, renew, this_process
from statefork.journal.postgres_link import Address, connect, driver, parse_address, unavailable
from statefork.journal.postgres_reading import PostgresEvents, PostgresReader, open_events
from statefork.journal.postgres_schema import WHOLE, create_schema
from statefork.journal.postgres_watch import Watcher
from statefork.journal.postgres_writer import PATIENCE_S, SESSION, Hooks, PostgresWriter
from statefork.journal.reading import Scan, identity, verify_tail
from statefork.journal.writer import nothing

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

_logger = logging.getLogger(__name__)

WAIT_S_FIRST = 0.02
WAIT_S_MAX = 1.0


class PostgresJournal(GroupedJournal[PostgresWriter, PostgresReader]):
    """A journal open for writing. See :class:`statefork.journal.log.Journal`; made by :func:`open_postgres_journal`.

    ``ride`` may be called from any thread, everything else on the event loop that opened the journal.
    """

    def __init__(self, address: Address, writer: PostgresWriter, events: PostgresEvents, limits: Limits) -> None:
        reader = PostgresReader(events, writer.journal, address)
        # A trip to a server may take any time: the event loop itself never makes it.
        super().__init__(writer, reader, limits, lead=writer.commit, tidy=nothing, pace=lambda: math.inf)
        self._events = events
        self._taken_over = anyio.Event()
        writer.on_fenced = lambda _: self._parking.post(self._taken_over.set)
        self._watcher = Watcher(
            address,
            self._moved,
            self._errand,
            lost=self._suspect,
            errand_s=writer.holder.seconds / 3,
            writer=writer.writer,
            listening=writer.needed != WHOLE,
        )

    @property
    def away(self) -> bool:
        """A connection to the server ended, or none is made: what nobody waits for is queued, and may never be kept."""
        return self._writer.away

    async def reachable(self) -> None:
        """Ask the server, for as long as an append waits for it. Raises JournalUnavailable, ClaimLost."""
        try:
            await self._settle(Entry(durable=True))
        except JournalUnavailable as error:  # perhaps what became of an earlier append is unknown: not of this
            said = f"{error.message.rstrip('.')}. Nothing was begun"
            raise JournalUnavailable(said, hint=error.hint, **error.facts) from None

    async def head(self) -> int:
        """Position of the last committed event, whoever wrote it."""
        return await self._reader.head()

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what a fold gave. Raises JournalUnavailable, ClaimLost, LimitExceeded, ValueError."""
        check_checkpoint(checkpoint, self._limits)
        if self._writer.fenced is not None:  # another one keeps them now
            raise own_copy(self._writer.fenced)
        if checkpoint.position > self._writer.position:
            await self.flush()
        await self._reader.keep(checkpoint)

    def subscribe(self, *, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Recorded]]:
        """All committed events after a position, then live ones, whoever writes them; ends when the journal is closed.

        While the server can't be reached it waits.
        """
        return self._feed.follow(lambda after: _Patient(self._events, after, self._feed), after)

    async def claim(self, *streams: str) -> Claim:
        """Claim streams, so that nobody else may write into them until it is released, or expires and is taken.

        Where another engine takes over, every later append of ours to them raises ClaimLost, in the database's own
        transaction. Raises ClaimHeld, StateLocked, JournalUnavailable.
        """
        return await run_sync(self._writer.claim, streams)

    async def release(self, claim: Claim) -> None:
        """Give back a claim. Raises JournalUnavailable."""
        await run_sync(self._writer.release, claim)

    async def fenced(self) -> ClaimLost:
        """Return when another engine has the claim without which nothing is written here. Noticed also at rest."""
        await self._taken_over.wait()
        assert self._writer.fenced is not None
        return self._writer.fenced

    def _moved(self, position: int) -> None:
        """In the watcher's thread."""
        self._writer.settle()
        head = max(position, self._writer.position)
        if head > self._feed.head:
            self._parking.post(lambda: self._feed.advance(head))

    def _suspect(self) -> None:
        """In the watcher's thread: whoever begins something asks first whether the server is there."""
        self._writer.away = True

    def _errand(self, connection: Connection) -> None:
        writer = self._writer
        if not renew(connection, writer.address, writer.writer, writer.holder, writer.needed):
            writer.fence(lost(writer.address, [writer.needed or WHOLE]))

    def _close(self) -> None:
        self._watcher.close()
        self._events.close()
        self._writer.close()


class _Patient:
    """Events after a position; while the server can't be reached it waits, and then reads on where it was."""

    def __init__(self, events: PostgresEvents, after: int, feed: Feed) -> None:
        self._events = events
        self._after = after
        self._feed = feed
        self._scan = self._begin()

    def _begin(self) -> Scan:
        return Scan(self._events, self._after, None, None, check_end=False)

    def __aiter__(self) -> _Patient:
        return self

    async def __anext__(self) -> Recorded:
        wait_s = WAIT_S_FIRST
        while True:
            try:
                recorded = await anext(self._scan)
            except JournalUnavailable:
                if self._feed.closed:
                    raise
                self._scan = self._begin()
            else:
                self._after = recorded.position
                return recorded
            await anyio.sleep(wait_s)
            wait_s = min(wait_s * 2, WAIT_S_MAX)


def open_postgres_journal(
    dsn: str,
    *,
    schema: str | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.time,
    sync_blobs: Callable[[], None] = nothing,
    before_commit: Callable[[], None] = nothing,
    whole: bool = True,
    place: str = "",
    lock: str = "",
    claim_s: float = CLAIM_S,
    patience_s: float = PATIENCE_S,
) -> AbstractAsyncContextManager[PostgresJournal]:
    """Open a journal in a database for writing; where there is none in the schema, it is made, with an identity.

    ``whole`` claims it for this process alone. Without it several write at once: each to streams that it claims
    (:meth:`PostgresJournal.claim`) or that nobody does. With ``place``, the name of a state directory that shares the
    journal, it is open for that place's engine: all that it writes is refused once another process has the place. A
    claim lasts ``claim_s`` seconds by the database's clock and is renewed while the process runs; one that the same
    ``lock`` still holds (what only one process at a time can have) is taken over at once. ``sync_blobs`` and
    ``before_commit`` are as for :func:`statefork.journal.sqlite.open_sqlite_journal`. A server that can't be reached is
    waited for ``patience_s`` seconds in each commit.
    Leaving the context writes what is queued; events that could not be written raise JournalUnavailable.
    Raises StateLocked, JournalCorrupt, JournalUnavailable.
    """
    holder = Holder(who=this_process(), lock=lock, seconds=claim_s)
    needed = engine_stream(place) if place else WHOLE if whole else None
    hooks = Hooks(sync_blobs=sync_blobs, before_commit=before_commit)

    def start() -> tuple[Address, PostgresWriter, PostgresEvents]:
        address = parse_address(dsn, schema)
        writer = PostgresWriter(address, holder, hooks, needed=needed, patience_s=patience_s)
        return address, writer, _start(address, writer, clock)

    return _opened(start, limits or Limits())


@asynccontextmanager
async def _opened(
    start: Callable[[], tuple[Address, PostgresWriter, PostgresEvents]], limits: Limits
) -> AsyncIterator[PostgresJournal]:
    address, writer, events = await run_sync(start)
    async with closing(PostgresJournal(address, writer, events, limits)) as opened:
        yield opened


def _start(address: Address, writer: PostgresWriter, clock: Callable[[], float]) -> PostgresEvents:
    name = secrets.token_hex(8)
    created = JournalCreated(at=clock(), journal=name, statefork=importlib.metadata.version("statefork"))
    data = Codec().encode(created)
    with contextlib.ExitStack() as stack:
        try:
            connection = connect(address, session=SESSION)
            stack.callback(connection.close)
            if connection.execute(b"SHOW fsync").fetchone() == ("off",):
                _logger.warning(
                    "the server of %s runs without fsync: a crash of its machine loses events", address.shown
                )
            first = (ENGINE_STREAM, data.decode(), link(GENESIS, ENGINE_STREAM, 1, data))
            create_schema(connection, address, name, first)
            events = open_events(address, may_read=writer.may_read)
            stack.callback(events.close)
            writer.journal = identity(events)
            verify_tail(events)
            writer.open(connection)
        except driver().Error as error:
            raise unavailable(address, "can't be opened for writing", error) from None
        stack.pop_all()
    return events
