"""Claims: who alone may write into a stream, or into a whole journal, until when, and with which fencing token.

An engine that shares a journal claims the stream that is its own (``engine/<place>``, see :mod:`~.events`), and is
fenced by it: each of its appends, to whatever stream, is refused once somebody else has that claim.

A claim is a row of the database. Its token is a number that only rises, and every append of its holder is checked
against it in the transaction that would keep it. So whoever was stopped, was taken for dead and wakes up late is
refused by the database, whatever it believes. When a claim has expired is for the database's clock to say, and means
only that somebody else may take it; until then its holder may write on.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from statefork.journal.errors import ClaimHeld, ClaimLost, JournalError, StateLocked
from statefork.journal.events import place_of
from statefork.journal.postgres_link import Address
from statefork.journal.postgres_schema import WHOLE, Sql

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

CLAIM_S = 30.0
"""For how long a claim is held without being renewed. It is renewed three times in that time."""

_OTHERS = (
    "SELECT stream, who, round(extract(epoch FROM expires - clock_timestamp()))::bigint FROM {s}.claims"
    " WHERE writer <> %(writer)s AND expires > clock_timestamp() AND (place = '' OR place <> %(lock)s)"
    " AND (%(whole)s OR stream = '*' OR stream = ANY (%(streams)s)) ORDER BY stream LIMIT 1"
)
_TAKE = (
    "INSERT INTO {s}.claims (stream, token, writer, place, who, expires)"
    " SELECT h.stream, %(token)s, %(writer)s, %(lock)s, %(who)s,"
    " clock_timestamp() + make_interval(secs => %(seconds)s) FROM unnest(%(streams)s::text[]) AS h(stream)"
    " ON CONFLICT (stream) DO UPDATE SET token = excluded.token, writer = excluded.writer, place = excluded.place,"
    " who = excluded.who, expires = excluded.expires"
)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write into some streams, alone. ``token`` rises with every claim that is taken in a journal."""

    streams: tuple[str, ...]
    token: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes. ``lock`` names what only one process at a time can hold (a state directory on this machine, which has
    a lock of its own): a claim that the same lock still holds is a dead process's, and is taken over at once."""

    who: str
    lock: str = ""
    seconds: float = CLAIM_S


def this_process() -> str:
    """How this process is called in claims."""
    return f"process {os.getpid()} on {platform.node() or 'an unnamed machine'}"


def take(
    connection: Connection, address: Address, writer: int, holder: Holder, streams: Sequence[str] | None
) -> Claim | None:
    """Claim these streams, within a transaction that holds the journal's lock. None: only see that nobody has it whole.

    Raises StateLocked where the whole journal is somebody else's (or is asked for, and a part is), else ClaimHeld.
    """
    sql = Sql(address)
    asked = [] if streams is None else list(streams)
    whole = WHOLE in asked
    names = {"writer": writer, "lock": holder.lock, "whole": whole, "streams": asked, "who": holder.who}
    found = connection.execute(sql(_OTHERS), names).fetchone()
    if found is not None:
        raise _held(address, *found, whole=whole)
    # what is left of others' here has expired: whoever wakes up late is refused for want of it
    connection.execute(
        sql("DELETE FROM {s}.claims WHERE writer <> %(writer)s AND (%(whole)s OR stream = '*')"),
        {"writer": writer, "whole": whole},
    )
    if not asked:
        return None
    token = count(connection, address)
    connection.execute(sql(_TAKE), {**names, "token": token, "seconds": holder.seconds})
    return Claim(streams=tuple(asked), token=token)


def renew(connection: Connection, address: Address, writer: int, holder: Holder, needed: str | None) -> bool:
    """Prolong every claim of a writer; False where it has lost the ``needed`` one. Raises psycopg's errors."""
    sql = Sql(address)
    until = "UPDATE {s}.claims SET expires = clock_timestamp() + make_interval(secs => %s) WHERE writer = %s"
    connection.execute(sql(until), (holder.seconds, writer))
    connection.execute(sql("UPDATE {s}.writers SET seen = clock_timestamp() WHERE writer = %s"), (writer,))
    query = sql("SELECT FROM {s}.claims WHERE stream = %s AND writer = %s")
    return needed is None or connection.execute(query, (needed, writer)).fetchone() is not None


def count(connection: Connection, address: Address) -> int:
    """The next of the journal's numbers, within a transaction: names of writers, sessions, tokens."""
    row = connection.execute(Sql(address)("UPDATE {s}.journal SET counter = counter + 1 RETURNING counter")).fetchone()
    assert row is not None
    return int(row[0])


def lost(address: Address, streams: Sequence[str]) -> ClaimLost:
    """The error for an append that was refused because somebody else has taken over."""
    stream = min(streams)
    place = place_of(stream)
    what = "The whole journal" if WHOLE in streams else f"The place {place}" if place else f"Stream {stream!r}"
    return ClaimLost(
        f"{what} at {address.shown} is no longer this engine's to write: another one has taken it over. "
        "Nothing is kept of what it still appends",
        hint="Close this engine: it was stopped or cut off for too long. The journal shows what the other one did",
        stream=stream,
    )


def ended(address: Address) -> ClaimLost:
    """The error for a writer that the database does not know any more."""
    return ClaimLost(
        f"The journal at {address.shown} does not know this writer any more. Nothing of this append was kept",
        hint="Close this engine and open it again",
    )


def _held(address: Address, stream: str, who: str, expires_s: int, *, whole: bool) -> JournalError:
    when = f"It ends in {max(expires_s, 0)} s unless {who} renews it"
    if whole or stream == WHOLE:
        what = "" if stream == WHOLE else f" in part ({stream})"
        return StateLocked(
            f"The journal at {address.shown} is open for writing{what} by {who}",
            hint=f"Use that engine, or stop it. {when}. Reading is possible meanwhile",
            holder=who,
            expires_s=expires_s,
        )
    if place := place_of(stream):
        return StateLocked(
            f"The place {place} of the journal at {address.shown} is open for writing by {who}, and not from here: "
            "this state directory is a copy of another one, or was moved",
            hint=f"Use that engine, or stop it. {when}. Reading is possible meanwhile",
            holder=who,
            place=place,
            expires_s=expires_s,
        )
    return ClaimHeld(
        f"Stream {stream!r} of the journal at {address.shown} is claimed by {who}",
        hint=f"{when}: wait, or ask that engine to release it",
        stream=stream,
        holder=who,
        expires_s=expires_s,
    )
