"""The digest of what is in a database, however it lies on disk: schema, rows, sequences, large objects.

Rows are taken in the order of the primary key, without one in the order of their whole text, so that equal rows count
as often as they are there. Planner statistics, oids, owners and the names of roles are no content. Nothing is held
in memory but a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from statefork.adapters.resources.postgres.catalog import Table, objects, sequences, tables
from statefork.adapters.resources.postgres.reading import Connection, copied, name, rows, steady, value
from statefork.adapters.resources.reflink import Pulse, no_pulse
from statefork.engine.masks import Column

_FORMAT = 1
_PULSE_ROWS = 1000
_PIECE_BYTES = 1 << 20  # of a large object, at a time
_PAGE_BYTES = 2048  # of a large object
_OBJECTS_AT_A_TIME = 200

_DATABASE = """
SELECT pg_encoding_to_char(encoding), datcollate, datctype FROM pg_database WHERE datname = current_database()
"""
_LARGE_OBJECTS = f"""
SELECT oid, beginning_of_last, CASE WHEN beginning_of_last < {_PIECE_BYTES} THEN encode(sha256(lo_get(oid)), 'hex') END
FROM (SELECT m.oid, (SELECT coalesce(max(pageno), 0) FROM pg_largeobject p WHERE p.loid = m.oid) * {_PAGE_BYTES}::bigint
      AS beginning_of_last FROM pg_largeobject_metadata m WHERE m.oid > %s ORDER BY m.oid LIMIT {_OBJECTS_AT_A_TIME}) o
ORDER BY oid
"""


def digest(connection: Connection, pulse: Pulse = no_pulse, without: frozenset[Column] = frozenset()) -> str:
    """SHA-256, in hex, of everything that a user of the connection's database can see in it.

    ``without``: columns whose values are left out; of a table without a schema, those of any table of that name. The
    connection is in no transaction, and its user can read everything. ``pulse`` is called between pieces of work.
    """
    whole = hashlib.sha256()
    with steady(connection):
        _feed(whole, "statefork postgres content", _FORMAT, *rows(connection, _DATABASE)[0])
        for identity, definition in objects(connection).items():
            _feed(whole, identity, definition)
        for sequence in sequences(connection):
            _feed(whole, sequence.schema, sequence.name, sequence.last_value, sequence.is_called)
        for table in tables(connection):
            _feed(whole, "table", table.schema, table.name, table.columns)
            count = 0
            for count, line in enumerate(copied(connection, ordered(table, without), pulse), 1):
                whole.update(line)
                if count % _PULSE_ROWS == 0:
                    pulse()
            _feed(whole, "rows", count)
            pulse()
        for oid, content in large_objects(connection, pulse):
            _feed(whole, "large object", oid, content)
    return whole.hexdigest()


def _feed(whole: hashlib._Hash, *values: object) -> None:
    whole.update(msgspec.msgpack.encode(values))


def ordered(table: Table, without: frozenset[Column] = frozenset()) -> str:
    """The query of a table's rows in an order that every server of this version agrees on.

    Where columns are left out, no row is known by a key that they are part of, and none is ordered by them.
    """
    names = (table.name, f"{table.schema}.{table.name}")
    gone = {column.name for column in without if column.table in names}.intersection(table.columns)
    columns = ", ".join(f"x.{name(column)}" for column in table.columns if column not in gone)
    collated = dict(zip(table.columns, table.collated, strict=True))
    key = () if gone.intersection(table.key) else table.key
    order = [f"x.{name(column)}" + (' COLLATE "C"' if collated[column] else "") for column in key]
    if not order:
        order = [f'ROW({columns if gone else "x.*"})::text COLLATE "C"']
    return f"SELECT {columns} FROM ONLY {name(table.schema, table.name)} x ORDER BY {', '.join(order)}"


def large_objects(connection: Connection, pulse: Pulse = no_pulse) -> Iterator[tuple[int, str]]:
    """Every large object's oid and SHA-256, read through its holes: how it is cut into pages is no content."""
    last = 0
    while some := rows(connection, _LARGE_OBJECTS, last):
        for last, beginning_of_last, known in some:
            yield last, known or _summed(connection, last, beginning_of_last, pulse)
        pulse()


def _summed(connection: Connection, oid: int, beginning_of_last: int, pulse: Pulse) -> str:
    content = hashlib.sha256()
    for offset in range(0, beginning_of_last + 1, _PIECE_BYTES):
        content.update(value(connection, "SELECT lo_get(%s, %s, %s)", oid, offset, _PIECE_BYTES))
        pulse()
    return content.hexdigest()
