"""What the server counted: a value that differs whenever a transaction changed the database.

PostgreSQL counts every row that is inserted, updated or deleted in a database, in its catalogs too (which is what DDL
and large objects are), in unlogged tables as in others. A session adds its counts to the server's when it is idle, at
most once in a second, and always before it leaves the list of sessions. So the mark is made of

* the sessions that are there (read first), each with the moment of its last statement, as their counts may be pending;
* the counts;
* the state of every sequence, which no count tells.

Reads, checkpoints, vacuums and the end of a session change nothing of it; a session that is there and reads does.
A server that crashed has lost its counts: the mark bears the moment at which they began.
"""

from __future__ import annotations

import hashlib
import secrets

import psycopg

from statefork.adapters.resources.postgres.reading import Connection, name, rows, value

_COUNTED = """
SELECT d.datid, d.tup_inserted, d.tup_updated, d.tup_deleted, extract(epoch FROM d.stats_reset),
       extract(epoch FROM b.stats_reset), extract(epoch FROM a.stats_reset)
FROM pg_catalog.pg_stat_database d, pg_catalog.pg_stat_bgwriter b, pg_catalog.pg_stat_archiver a
WHERE d.datname = %s
"""
_COUNTS_NOW = """
SELECT pg_catalog.current_setting('track_counts') FROM pg_catalog.pg_stat_force_next_flush()
"""  # of our own counts, should there be any
_SESSIONS = """
SELECT pid, extract(epoch FROM backend_start), extract(epoch FROM state_change), state, backend_type
FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = %s) AND pid <> %s
AND backend_type NOT IN ('autovacuum worker', 'parallel worker') ORDER BY pid
"""
_IS_SHUT = """
SELECT pg_catalog.current_setting('track_counts') = 'on' AND NOT d.datallowconn
AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_get_activity(NULL) a WHERE a.datid = d.oid
                AND a.backend_type NOT IN ('autovacuum worker', 'parallel worker'))
FROM pg_catalog.pg_database d WHERE d.datname = %s
"""
_SEQUENCES = """
SELECT c.oid, d.last_value, d.is_called FROM pg_catalog.pg_class c, pg_catalog.pg_get_sequence_data(c.oid) d
WHERE c.relkind = 'S' AND c.relpersistence <> 't' ORDER BY c.oid
"""
_SEQUENCE_NAMES = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND c.relpersistence <> 't' ORDER BY c.oid
"""
_COUNTS_SINCE = 150000  # before, counts went to a collector that could lose them
_SEQUENCE_DATA_SINCE = 180000


def mark(connection: Connection, outside: Connection | None = None) -> str:
    """The mark of the connection's database. The connection is a superuser's, and in no transaction.

    Equal marks: no change was committed between the two calls. It says so only where that is certain; with a statement
    running in another session, or where the server does not count, no two marks are equal. ``outside``, a superuser's
    too, commits by itself and may be in another database: what it has asked before it need not plan again.
    """
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE, "the connection is in use"
    # Each statement is a transaction of its own and sees the counters anew, if the connection commits by itself.
    was, connection.autocommit = connection.autocommit, True
    try:
        return _mark(connection, outside or connection)
    finally:
        connection.autocommit = was


def mark_of_shut(outside: Connection, database: str, sequences: str) -> str:
    """The mark of a database that nobody may enter: to enter takes longer than to ask from another one.

    ``sequences`` is what :func:`sequences_in` says of a mark of a database that this one is a copy of, or what
    :func:`state_of_sequences` said since it was shut. With a session in it still, no two marks are equal.
    """
    counts = outside.info.server_version >= _COUNTS_SINCE and rows(outside, _IS_SHUT, database) == [(True,)]
    if not (sequences and counts):
        return _unequal()
    return _whole(_counts(outside, database), sequences, "")


def sequences_in(mark: str) -> str:
    """What a mark tells of the sequences, which every copy of the database has alike; empty where it tells nothing."""
    parts = mark.split(".")
    return parts[2] if len(parts) == 4 else ""


def state_of_sequences(connection: Connection) -> str:
    """A digest of the state of every sequence of the connection's database; empty where it may not be read."""
    found = _sequences(connection)
    return "" if any(None in sequence for sequence in found) else _hash(found, 32)


def _mark(inside: Connection, outside: Connection) -> str:
    if not _is_counting(inside):
        return _unequal()
    database = inside.info.dbname
    sessions = rows(outside, _SESSIONS, database, inside.info.backend_pid)
    if any(state != "idle" or kind != "client backend" for *_, state, kind in sessions):
        return _unequal()
    counts = _counts(outside, database)
    sequences = state_of_sequences(inside)
    return _whole(counts, sequences, _hash(sessions, 16) if sessions else "") if sequences else _unequal()


def _whole(counts: str, sequences: str, pending: str) -> str:
    return f"pg2.{counts}.{sequences}.{pending}"


def _is_counting(connection: Connection) -> bool:
    return connection.info.server_version >= _COUNTS_SINCE and value(connection, _COUNTS_NOW) == "on"


def _counts(connection: Connection, database: str) -> str:
    return _hash(connection.execute(_COUNTED.encode(), (database,)).fetchall(), 32)


def _hash(found: object, length: int) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:length]


def _unequal() -> str:
    return f"pg2.?{secrets.token_hex(16)}"


def _sequences(connection: Connection) -> list[tuple[object, ...]]:
    if connection.info.server_version >= _SEQUENCE_DATA_SINCE:
        return rows(connection, _SEQUENCES)
    found: list[tuple[object, ...]] = []
    for schema, sequence in rows(connection, _SEQUENCE_NAMES):
        found += rows(connection, f"SELECT tableoid, last_value, is_called FROM {name(schema, sequence)}")
    return found
