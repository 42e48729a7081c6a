"""Reading a journal on PostgreSQL: from any machine, with or without an engine.

What is read is checked on the way as it is for a file: positions without holes, the hash chain of each stream, and at
the end the heads of the streams. A connection that ended is made again by the next read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.to_thread import run_sync

from statefork.journal.checkpoint import Checkpoint, Stored, check_fold, first_line, foreign, not_there, unpack, unused
from statefork.journal.codec import GENESIS, Chain, Codec, Tails, corrupt, digest_of_heads, link
from statefork.journal.errors import JournalError, closed
from statefork.journal.eventfile import CHUNK_BYTES, Chunk, End, Head, Selected, check_last, check_rows
from statefork.journal.events import place_of
from statefork.journal.log import Recorded
from statefork.journal.postgres_link import Address, connect, driver, is_broken, unavailable
from statefork.journal.postgres_schema import Sql, check_schema, no_journal
from statefork.journal.reading import Scan, identity
from statefork.journal.writer import nothing

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

T = TypeVar("T")

PART_BYTES = 8 * 1024 * 1024
"""A checkpoint is stored in parts of this size."""

_ROWS = """
SELECT position, convert_to(stream, 'UTF8'), version, convert_to(event, 'UTF8'), convert_to(hash, 'UTF8') FROM (
  SELECT *, sum(octet_length(event)) OVER (ORDER BY {order}) - octet_length(event) AS before FROM (
    SELECT * FROM {s}.events WHERE {where} ORDER BY {order} LIMIT %(count)s) few) sized
WHERE before < %(room)s ORDER BY {order}"""
_ALL = _ROWS.replace("{order}", "position").replace("{where}", "position > %(after)s")
_OF_STREAM = _ROWS.replace("{order}", "version").replace("{where}", "stream = %(stream)s AND version > %(start)s")
_START = (
    "SELECT coalesce((SELECT version FROM {s}.events WHERE stream = %(stream)s AND position <= %(after)s"
    " ORDER BY version DESC LIMIT 1), 0)"
)
_POSITION = "SELECT position FROM {s}.journal"
_LAST = "SELECT position, hash FROM {s}.events ORDER BY position DESC LIMIT 1"
_LAST_OF_STREAM = "SELECT version, hash FROM {s}.events WHERE stream = %s ORDER BY version DESC LIMIT 1"
_HEADS = "SELECT stream, version, hash FROM {s}.streams WHERE stream = ANY (%s)"
_HASHES = (
    "SELECT e.stream, e.hash FROM unnest(%s::text[], %s::bigint[]) AS h(stream, version)"
    " JOIN {s}.events e ON e.stream = h.stream AND e.version = h.version"
)
_WHOLE_HEADS = (
    "SELECT s.stream, s.version, s.hash, e.position, convert_to(e.event, 'UTF8'), e.hash, p.hash FROM {s}.streams s"
    " LEFT JOIN {s}.events e ON e.stream = s.stream AND e.version = s.version"
    " LEFT JOIN {s}.events p ON p.stream = s.stream AND p.version = s.version - 1 WHERE s.stream = ANY (%s)"
)
_HEADS_AT = (
    "SELECT s.stream, coalesce(l.version - 1, s.version), coalesce(e.hash, s.hash) FROM {s}.streams s"
    " LEFT JOIN (SELECT stream, min(version) AS version FROM {s}.events WHERE position > %s GROUP BY stream) l"
    " ON l.stream = s.stream"
    " LEFT JOIN {s}.events e ON e.stream = s.stream AND e.version = l.version - 1"
    " WHERE l.version IS NULL OR l.version > 1 ORDER BY s.stream"
)


def load_heads(connection: Connection, sql: Sql, streams: Sequence[str]) -> dict[str, Head]:
    """The heads of streams, each with its last event verified; (0, GENESIS) where there is none yet.

    Raises psycopg's errors, JournalCorrupt.
    """
    heads: dict[str, Head] = dict.fromkeys(streams, (0, GENESIS))
    for stream, version, last, position, event, digest, before in connection.execute(
        sql(_WHOLE_HEADS), (list(streams),), binary=True
    ):
        previous = before if version > 1 else GENESIS
        if event is None or previous is None:
            raise corrupt(position or 0, f"event {version} of stream {stream!r}, or the one before it, is missing")
        if not last == digest == link(previous, stream, version, event):
            raise corrupt(position, f"the last event of stream {stream!r} is not the one that was recorded as last")
        heads[stream] = (version, last)
    return heads


class _KnownBefore(Chain):
    """A chain that is told beforehand what it will ask."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}  # by stream: the hash of the event before the first one read
        super().__init__(lambda stream, version: self.known.get(stream))


class PostgresEvents:
    """Checked reads on one connection, which is made again where it ended. Blocking; reads take turns.

    ``may_read`` raises while reading back could not tell what became of an append.
    """

    def __init__(self, address: Address, *, may_read: Callable[[], None] = nothing) -> None:
        self._address = address
        self._may_read = may_read
        self._sql = Sql(address)
        self._codec = Codec()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def ask(self, what: Callable[[Connection], T]) -> T:
        """Answer something in one snapshot. Raises JournalUnavailable."""
        with self._lock:
            for last in (False, True):
                if self._closed:
                    raise closed()
                reused = self._connection is not None
                try:
                    if self._connection is None:
                        self._connection = connect(self._address)
                        self._connection.isolation_level = driver().IsolationLevel.REPEATABLE_READ
                    with self._connection.transaction():
                        return what(self._connection)
                except driver().Error as error:
                    broken = is_broken(self._connection, error)
                    if broken and self._connection is not None:
                        self._connection.close()
                        self._connection = None
                    if last or not (broken and reused):  # a connection that lay idle may have ended long ago
                        raise unavailable(self._address, "can't be read", error) from None
        raise AssertionError("two attempts were made")

    def close(self) -> None:
        """Later reads raise JournalUnavailable. Idempotent."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def one(self, query: str, *parameters: object) -> Any:
        """The first column of the first row; None where there is none."""

        def asked(connection: Connection) -> Any:
            row = connection.execute(self._sql(query), parameters).fetchone()
            return row[0] if row else None

        self._may_read()
        return self.ask(asked)

    def head(self) -> int:
        """The last position."""
        return int(self.one(_POSITION) or 0)

    def hash_at(self, position: int) -> str | None:
        """The stored hash of an event; None where there is none."""
        found = self.one("SELECT hash FROM {s}.events WHERE position = %s", position)
        return None if found is None else str(found)

    def stream_version(self, stream: str) -> int:
        """The number of events in a stream."""
        return int(self.one("SELECT version FROM {s}.streams WHERE stream = %s", stream) or 0)

    def streams(self) -> list[str]:
        """The names of all streams, sorted."""
        query = self._sql("SELECT stream FROM {s}.streams ORDER BY stream")
        return self.ask(lambda connection: [str(name) for (name,) in connection.execute(query)])

    def heads_digest(self, at: int) -> str:
        """The digest of all streams' heads as they stood at a position."""
        return self.ask(lambda connection: digest_of_heads(connection.execute(self._sql(_HEADS_AT), (at,))))

    def chain(self) -> Chain:
        """A fresh check for a read that begins here."""
        return _KnownBefore()

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
        """Up to ``count`` checked events after a position. See :meth:`statefork.journal.eventfile.EventFile.chunk`."""
        events: list[Recorded] = []
        fresh: Tails = {}
        try:
            self._may_read()
            selected = self.ask(lambda it: self._select(it, after, stream, count, start, chain, check_end=check_end))
            check_rows(self._codec, selected, after, stream, chain, events, fresh)
            if selected.end is not None:
                last = events[-1].position if events else after
                check_last(last, stream, selected, {**chain.tails, **fresh})
        except JournalError as error:
            return Chunk(events, fresh, ended=False, error=error)
        return Chunk(events, fresh, selected.ended, None)

    def _select(
        self,
        connection: Connection,
        after: int,
        stream: str | None,
        count: int,
        start: int | None,
        chain: Chain,
        *,
        check_end: bool,
    ) -> Selected:
        names: dict[str, Any] = {"after": after, "count": count, "stream": stream, "start": start or 0}
        if stream is not None and start is None and after > 0:
            (names["start"],) = connection.execute(self._sql(_START), names).fetchone() or (0,)
        query = self._sql(_ALL if stream is None else _OF_STREAM)
        rows = connection.execute(query, {**names, "room": CHUNK_BYTES}, binary=True).fetchall()
        self._tell(connection, chain, rows)
        ended = len(rows) < count and sum(len(row[3]) for row in rows) < CHUNK_BYTES
        end = self._end(connection, stream, {*chain.tails, *(row[1].decode() for row in rows)}) if ended else None
        return Selected(rows, names["start"], ended, end if check_end else None)

    def _tell(self, connection: Connection, chain: Chain, rows: Sequence[tuple[Any, ...]]) -> None:
        """Find the hashes that the chain will ask for: of the events before the first ones read of their streams."""
        first: dict[str, int] = {}
        for row in rows:
            name = row[1].decode()
            if name not in chain.tails and name not in first:
                first[name] = row[2]
        wanted = {name: version - 1 for name, version in first.items() if version > 1}
        if wanted and isinstance(chain, _KnownBefore):
            found = connection.execute(self._sql(_HASHES), (list(wanted), list(wanted.values())))
            chain.known.update(found.fetchall())

    def _end(self, connection: Connection, stream: str | None, seen: set[str]) -> End:
        ask = connection.execute
        if stream is not None:
            head = ask(self._sql("SELECT version, hash FROM {s}.streams WHERE stream = %s"), (stream,)).fetchone()
            last = ask(self._sql(_LAST_OF_STREAM), (stream,)).fetchone()
            return End(head[0] if head else 0, last, {stream: head} if head else {})
        (promised,) = ask(self._sql(_POSITION)).fetchone() or (0,)
        heads = {name: (version, last) for name, version, last in ask(self._sql(_HEADS), (list(seen),))}
        return End(promised, ask(self._sql(_LAST)).fetchone(), heads)


class PostgresReader:
    """A journal on PostgreSQL, to read. See :class:`statefork.journal.log.Reader`."""

    def __init__(self, events: PostgresEvents, journal_id: str, address: Address) -> None:
        self._events = events
        self._id = journal_id
        self._sql = Sql(address)

    @property
    def id(self) -> str:
        """The journal's identity."""
        return self._id

    def read(self, *, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
        """Committed events after a position, in order. Raises JournalCorrupt, JournalUnavailable."""
        return Scan(self._events, after, stream, limit, check_end=True)

    @property
    def outdated(self) -> bool:
        """Never: what a server commits is seen by whoever asks it."""
        return False

    async def head(self) -> int:
        """Position of the last committed event."""
        return await run_sync(self._events.head)

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream."""
        return await run_sync(self._events.stream_version, stream)

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""
        return await run_sync(self._events.streams)

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position."""
        return await run_sync(self._events.heads_digest, at)

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold, if it is whole and belongs to this journal."""
        return await run_sync(self._load, fold)

    async def engines(self) -> Mapping[str, str]:
        """The places whose claims have not expired, and who has them."""
        return await run_sync(self._holders)

    def _holders(self) -> dict[str, str]:
        query = self._sql("SELECT stream, who FROM {s}.claims WHERE expires > clock_timestamp() ORDER BY stream")
        rows = self._events.ask(lambda connection: connection.execute(query).fetchall())
        return {place: who for stream, who in rows if (place := place_of(stream))}

    async def keep(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint whose event is there; for the journal's writer. Raises JournalUnavailable, ValueError."""
        await run_sync(self._save, checkpoint)

    def _load(self, fold: str) -> Checkpoint | None:
        check_fold(fold)
        query = self._sql("SELECT data FROM {s}.checkpoints WHERE fold = %s ORDER BY part")
        parts = self._events.ask(lambda connection: connection.execute(query, (fold,), binary=True).fetchall())
        if not parts:
            return None
        stored = unpack(f"of {fold}", fold, parts[0][0], b"".join(part for (part,) in parts[1:]))
        if stored is None:
            return None
        if why := foreign(stored, self._id, self._events.hash_at(stored.checkpoint.position)):
            unused(f"of {fold}", why)
            return None
        return stored.checkpoint

    def _save(self, checkpoint: Checkpoint) -> None:
        digest = self._events.hash_at(checkpoint.position)
        if digest is None:
            raise not_there(checkpoint.position, self._events.head())
        stored = Stored(checkpoint=checkpoint, journal=self._id, hash=digest)
        fold, data = checkpoint.fold, checkpoint.data

        def save(connection: Connection) -> None:
            connection.execute(self._sql("DELETE FROM {s}.checkpoints WHERE fold = %s"), (fold,))
            for number, part in enumerate(_parts(first_line(stored), data)):
                row = self._sql("INSERT INTO {s}.checkpoints (fold, part, data) VALUES (%s, %s, %b)")
                connection.execute(row, (fold, number, part))

        self._events.ask(save)


def _parts(first: bytes, data: bytes) -> Iterator[bytes]:
    yield first
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def open_events(address: Address, *, may_read: Callable[[], None] = nothing) -> PostgresEvents:
    """Reads on a journal that is there. Raises StateMissing, JournalCorrupt, JournalUnavailable."""
    events = PostgresEvents(address, may_read=may_read)
    try:
        if not events.ask(lambda connection: check_schema(connection, address)):
            raise no_journal(address)
    except BaseException:
        events.close()
        raise
    return events


@contextlib.asynccontextmanager
async def open_postgres_reader(address: Address) -> AsyncIterator[PostgresReader]:
    """Open a journal for reading only. Raises StateMissing, JournalCorrupt, JournalUnavailable."""
    events = await run_sync(open_events, address)
    try:
        yield PostgresReader(events, await run_sync(identity, events), address)
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(events.close)
