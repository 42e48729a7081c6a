"""The writing side of a journal on PostgreSQL: one connection, used by one thread at a time.

A group commit is one call of the database's function ``append``, with the heads of the streams as they are believed to
be; the database gives the positions. Where another engine wrote to one of the streams meanwhile, it is done once more
under the journal's lock. Where the reply is lost, the next connection settles what became of the batch before anything
else is done (see ``postgres_schema``), and if nothing did, the batch is sent again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING

import msgspec

from statefork.journal.batch import Entry, Heads, Placed, own_copy
from statefork.journal.errors import AppendUnknown, ClaimLost, JournalError, JournalUnavailable
from statefork.journal.postgres_call import CALL, arguments
from statefork.journal.postgres_claims import Claim, Holder, count, ended, lost, take
from statefork.journal.postgres_link import Address, connect, driver, is_broken, is_passing, unavailable
from statefork.journal.postgres_reading import load_heads
from statefork.journal.postgres_schema import WHOLE, Sql
from statefork.journal.writer import Stats, nothing

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

PATIENCE_S = 10.0
"""For how long a commit tries to reach a server that restarts or is cut off, before those who wait are told."""

RETRY_S_FIRST = 0.02
RETRY_S_MAX = 0.5

SESSION = (
    b"; SET plan_cache_mode = force_generic_plan"
    b"; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
)
"""Else the statements of the function are planned anew in each call, which takes most of its time; and a plan that is
kept from when the tables were small would read them whole when they are big."""

_logger = logging.getLogger(__name__)


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """What runs before a commit: see :func:`statefork.journal.postgres.open_postgres_journal`."""

    sync_blobs: Callable[[], None] = nothing
    before_commit: Callable[[], None] = nothing


class _Batch(msgspec.Struct, kw_only=True):
    """What was sent, until it is known what became of it."""

    name: uuid.UUID
    entries: list[Entry]
    placed: Placed
    guessed: int  # the position behind which the entries were placed


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says to a batch. ``bad`` are streams."""

    outcome: str  # kept (reached: the last position), conflict, lost, ended
    reached: int = 0
    bad: tuple[str, ...] = ()


class PostgresWriter:
    """Blocking; one thread at a time gets in.

    ``needed``: the claim without which nothing is written: WHOLE, or the stream of the engine's place; None: there is
    none. ``on_fenced`` is called, in whatever thread, once it is lost.
    """

    def __init__(
        self, address: Address, holder: Holder, hooks: Hooks, *, needed: str | None, patience_s: float = PATIENCE_S
    ) -> None:
        self.address = address
        self.holder = holder
        self._hooks = hooks
        self._patience_s = patience_s
        self._sql = Sql(address)
        self._turn = threading.RLock()
        self._heads = Heads(self._head_of)
        self._connection: Connection | None = None
        self._session = 0
        self._sent: _Batch | None = None
        self._kept: set[Entry] = set()  # settled as kept after they had been reported as unknown
        self._claims: dict[str, int] = {}
        self.needed = needed
        self.fenced: ClaimLost | None = None  # nothing will ever be written again
        self.on_fenced: Callable[[ClaimLost], None] = lambda _: None
        self.journal = ""  # its identity
        self.writer = 0
        self.position = 0
        self.unknown = False  # a batch was reported as unknown and is not settled yet
        self.away = False  # a connection ended, and nothing was committed since
        self.stats = Stats()

    def open(self, connection: Connection) -> None:
        """Become a writer of the journal, with a connection of one's own. Raises StateLocked."""
        with connection.transaction():
            self.position = self._lock(connection)
            self.writer = self._session = count(connection, self.address)
            claim = take(connection, self.address, self.writer, self.holder, self.needed and [self.needed])
            connection.execute(
                self._sql("INSERT INTO {s}.writers (writer, session, who) VALUES (%s, %s, %s)"),
                (self.writer, self._session, self.holder.who),
            )
            connection.execute(
                self._sql(
                    "DELETE FROM {s}.writers w WHERE seen < clock_timestamp() - interval '1 day'"
                    " AND NOT EXISTS (SELECT FROM {s}.claims c WHERE c.writer = w.writer)"
                )
            )
        self._remember(claim)
        self._connection = connection

    # --- claims -----------------------------------------------------------------------------------------------------

    def claim(self, streams: Sequence[str]) -> Claim:
        """Claim streams. Raises ClaimHeld, StateLocked, JournalUnavailable."""
        with self._asking("could not be asked for a claim") as connection, connection.transaction():
            self._lock(connection)
            claim = take(connection, self.address, self.writer, self.holder, streams)
        assert claim is not None
        self._heads.forget(streams)
        self._remember(claim)
        return claim

    def release(self, claim: Claim) -> None:
        """Give streams back to everybody. Raises JournalUnavailable."""
        query = "DELETE FROM {s}.claims WHERE writer = %s AND token = %s AND stream = ANY (%s)"
        with self._asking("could not be asked to release a claim") as connection:
            connection.execute(self._sql(query), (self.writer, claim.token, list(claim.streams)))
            for stream in claim.streams:
                if self._claims.get(stream) == claim.token:
                    del self._claims[stream]

    @property
    def claims(self) -> dict[str, int]:
        """The tokens by stream, as far as is known here."""
        return dict(self._claims)

    def may_read(self) -> None:
        """Raise JournalUnavailable while reading could not tell what became of an append."""
        if self.unknown:
            raise JournalUnavailable(
                f"What became of an append to the journal at {self.address.shown} is not settled yet",
                hint="Wait until the server can be reached",
            )

    def _remember(self, claim: Claim | None) -> None:
        if claim is not None:
            self._claims |= dict.fromkeys(claim.streams, claim.token)

    # --- committing -------------------------------------------------------------------------------------------------

    def commit(self, entries: Sequence[Entry]) -> None:
        """Give the entries their places and have the database keep them: all, or none and JournalError is raised.

        An entry whose expectation fails, or whose stream is no longer ours, gets its error and disturbs no other.
        AppendUnknown says that the server could not be asked what became of them.
        """
        give_up = monotonic() + self._patience_s
        wait_s = RETRY_S_FIRST
        with self._turn:
            while True:
                try:
                    if self.fenced is not None:
                        self._give_up(entries, self.fenced)
                        break
                    connection = self._connected()
                    self._commit(connection, [entry for entry in entries if entry not in self._kept])
                    self.away = False
                    break
                except OSError as error:
                    self.stats.failures += 1
                    raise self._disk_failed(error) from error
                except driver().Error as error:
                    self.stats.failures += 1
                    passing = self._drop(error)
                    self.away = self._connection is None
                    if not passing or monotonic() >= give_up:
                        raise self._failure(error) from None
                sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
            self._kept.difference_update(entries)

    def settle(self) -> None:
        """If a batch was reported as unknown, find out, unless somebody is at it. Raises JournalUnavailable."""
        if self.unknown and self._turn.acquire(blocking=False):
            try:
                with self._asking("can't be asked what became of an append"):
                    pass
            finally:
                self._turn.release()

    def _commit(self, connection: Connection, entries: list[Entry]) -> None:
        self._hooks.sync_blobs()
        while entries:
            answer = self._try(connection, entries)
            if answer.outcome == "conflict":
                self._sent = None
                with connection.transaction():
                    self.position = self._lock(connection)
                    self._heads.forget(_touched(entries))
                    answer = self._try(connection, entries)
            match answer.outcome:
                case "kept":
                    self._settled(answer.reached)
                    return
                case "lost" if self.needed in answer.bad:
                    self._settled(None)
                    self._give_up(entries, self.fence(lost(self.address, answer.bad)))
                    return
                case "lost" if WHOLE not in answer.bad:
                    self._settled(None)
                    entries = self._without(entries, set(answer.bad))
                case "lost":
                    self._settled(None)
                    raise lost(self.address, answer.bad)
                case _:
                    self._settled(None)
                    self._give_up(entries, self.fence(ended(self.address)))
                    return

    def _try(self, connection: Connection, entries: list[Entry]) -> _Answer:
        """Place the entries and send them. Inside a transaction the answer holds only once that is committed."""
        self._learn(connection, entries)
        placed = self._heads.place(entries, self.position)
        refused = [entry for entry in entries if entry.error is not None]
        if refused:  # by what we remember; others may have written since
            self._heads.forget(_touched(refused))
            self._learn(connection, refused)
            placed = self._heads.place(entries, self.position)
        if not placed.rows:
            if any(not entry.drafts for entry in entries):  # somebody asks whether the server is there
                connection.execute(b"SELECT")
            return _Answer(outcome="kept", reached=self.position)
        touched = {stream: self._heads.get(stream) for entry in entries if entry.error is None for stream in _of(entry)}
        self._hooks.before_commit()
        self._sent = batch = _Batch(name=uuid.uuid4(), entries=entries, placed=placed, guessed=self.position)
        claimed = {name: token for name, token in self._claims.items() if name in touched or name == self.needed}
        sent = arguments(batch.name, self.writer, self._session, touched, placed, claimed)
        row = connection.execute(self._sql(CALL), sent).fetchone()
        assert row is not None
        outcome, reached, bad = row
        return _Answer(outcome=outcome, reached=reached or 0, bad=tuple(bad or ()))

    def _settled(self, reached: int | None) -> None:
        """What was sent last stands in the journal, its last event at ``reached``; None: it never will."""
        batch, self._sent, self.unknown = self._sent, None, False
        if batch is None or reached is None:
            return
        shift = reached - len(batch.placed.rows) - batch.guessed
        for entry in batch.entries:
            entry.position += shift
        self.position = reached
        self._heads.keep(batch.placed)
        self.stats.commits += 1
        self.stats.events += len(batch.placed.rows)

    def fence(self, error: ClaimLost) -> ClaimLost:
        """Somebody else has the claim that was needed: tell everybody, now and whenever something is to be written."""
        if self.fenced is None:
            self.fenced = error
            self.on_fenced(error)
        return error

    def _give_up(self, entries: Sequence[Entry], error: ClaimLost) -> None:
        for entry in entries:
            entry.error = own_copy(error)
        self._dropped(sum(entry.events for entry in entries if not entry.durable), error.message)

    def _dropped(self, events: int, why: str) -> None:
        if events:
            _logger.warning("%d events for which nobody waits were given up: %s", events, why)

    def _without(self, entries: list[Entry], bad: set[str]) -> list[Entry]:
        """The entries that touch none of these streams; the others get their error."""
        rest = []
        dropped = 0
        for entry in entries:
            if hit := bad.intersection(_of(entry)):
                entry.error = lost(self.address, sorted(hit))
                dropped += 0 if entry.durable else entry.events
            else:
                rest.append(entry)
        self._dropped(dropped, f"another engine has taken over {', '.join(sorted(bad))}")
        return rest

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        """The connection, made anew where it ended; then what was sent in the old one is settled first."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = connect(self.address, session=SESSION)
        try:
            with connection.transaction():
                self._lock(connection)
                session = count(connection, self.address)
                query = "UPDATE {s}.writers SET session = %s WHERE writer = %s RETURNING batch, reached"
                row = connection.execute(self._sql(query), (session, self.writer)).fetchone()
            if row is None:
                raise self.fence(ended(self.address))
        except BaseException:
            connection.close()
            raise
        self._connection, self._session = connection, session
        batch, reached = row
        if self._sent is not None:
            sent, reported = self._sent, self.unknown
            kept = batch == sent.name
            if kept:  # riders may be given to us again
                self._kept.update(entry for entry in sent.entries if not (reported and entry.durable))
            self._settled(reached if kept else None)
            _logger.warning("an append got no answer: it was %s", "kept" if kept else "not kept")
        return connection

    def _drop(self, error: Exception) -> bool:
        """After an error: whether the connection ended and the server may be there again soon.

        If it did not end, the server has said that nothing was kept.
        """
        connection = self._connection
        if connection is not None and not is_broken(connection, error):
            self._sent = None
            return False
        if connection is not None:
            connection.close()
            self._connection = None
            return True
        return is_passing(error)

    def _failure(self, error: Exception) -> JournalError:
        if self._sent is not None and not self.unknown:
            self.unknown = True
            said = unavailable(self.address, "gave no answer to an append, and can't be reached", error)
            hint = f"What became of it will be known when the server is back. {said.hint}"
            return AppendUnknown(said.message, hint=hint, **said.facts)
        return unavailable(self.address, "could not be written", error)

    def _disk_failed(self, error: OSError) -> JournalUnavailable:
        return JournalUnavailable(
            f"The journal could not be written: the disk failed ({error}). Nothing of this append was kept",
            hint="Free space or repair the disk. Events for which nobody waits are kept and tried again",
        )

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[Connection]:
        with self._turn:
            try:
                yield self._connected()
            except driver().Error as error:
                self._drop(error)
                raise unavailable(self.address, what, error) from None

    def _lock(self, connection: Connection) -> int:
        """Take the journal's lock, until the transaction ends; the last position."""
        row = connection.execute(self._sql("SELECT position FROM {s}.journal FOR UPDATE")).fetchone()
        assert row is not None
        return int(row[0])

    def _learn(self, connection: Connection, entries: Iterable[Entry]) -> None:
        unknown = self._heads.unknown(_touched(entries))
        if unknown:
            self._heads.learn(load_heads(connection, self._sql, unknown))

    def _head_of(self, stream: str) -> tuple[int, str] | None:
        assert self._connection is not None
        return load_heads(self._connection, self._sql, [stream])[stream]

    def close(self) -> None:
        """Give back every claim and go, if the server can still be told."""
        with self._turn:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            with contextlib.suppress(driver().Error), connection.transaction():
                connection.execute(self._sql("DELETE FROM {s}.claims WHERE writer = %s"), (self.writer,))
                connection.execute(self._sql("DELETE FROM {s}.writers WHERE writer = %s"), (self.writer,))
            connection.close()


def _of(entry: Entry) -> Iterator[str]:
    return (draft.stream for draft in entry.drafts)


def _touched(entries: Iterable[Entry]) -> set[str]:
    """The streams that entries name, also those of which they only expect something."""
    return {stream for entry in entries for stream in _of(entry)}
