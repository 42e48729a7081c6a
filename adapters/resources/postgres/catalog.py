"""What a database consists of besides rows: every object by its kind and name, with a definition that bears no number.

Oids, owners, table spaces and the names of roles do not enter, so a clone, a restored dump and the original have the
same catalog. What belongs to an extension is told by the extension's name and version alone; rows are read from its
tables as from others.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from statefork.adapters.resources.postgres.definitions import OURS, QUERIES
from statefork.adapters.resources.postgres.reading import Connection, literal, name, rows


class Table(msgspec.Struct, frozen=True):
    """A table or a filled materialized view: something that has rows."""

    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    collated: tuple[bool, ...]  # by column: whether its order depends on a collation
    key: tuple[str, ...]  # the primary key's columns; empty without one

    def __str__(self) -> str:
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"


class Sequence(msgspec.Struct, frozen=True):
    """A sequence, and where it stands."""

    schema: str
    name: str
    last_value: int
    is_called: bool

    def __str__(self) -> str:
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"


_TABLES = f"""
SELECT n.nspname, c.relname,
  coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum) {{columns}}), '{{{{}}}}'),
  coalesce((SELECT array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) {{columns}}), '{{{{}}}}'),
  coalesce((SELECT array_agg(a.attcollation <> 0 ORDER BY a.attnum) {{columns}}), '{{{{}}}}'),
  coalesce((SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum))
            FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])
            WHERE i.indrelid = c.oid AND i.indisprimary
            AND array_position(i.indkey::int2[], a.attnum) < i.indnkeyatts), '{{{{}}}}')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (c.relkind = 'r' OR c.relkind = 'm' AND c.relispopulated) AND c.relpersistence <> 't' AND {OURS}
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
""".format(columns="FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped")


def tables(connection: Connection) -> tuple[Table, ...]:
    """Everything that has rows, in the order of names; partitions are tables, what is divided into them is none."""
    return tuple(
        Table(schema, table, tuple(columns), tuple(types), tuple(collated), tuple(key))
        for schema, table, columns, types, collated, key in rows(connection, _TABLES)
    )


_SEQUENCES = f"""
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND {OURS} ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""
_AT_ONCE = 100


def sequences(connection: Connection) -> Iterator[Sequence]:
    """Every sequence, in the order of names."""
    found = rows(connection, _SEQUENCES)
    for start in range(0, len(found), _AT_ONCE):
        some = found[start : start + _AT_ONCE]
        query = " UNION ALL ".join(
            f"SELECT {literal(schema)}, {literal(sequence)}, last_value, is_called FROM {name(schema, sequence)}"
            for schema, sequence in some
        )
        yield from (Sequence(*row) for row in rows(connection, query))


def objects(connection: Connection) -> dict[str, str]:
    """Every object's definition by its kind and name, in a fixed order."""
    found: dict[str, str] = {}
    for query in QUERIES:
        for kind, identity, definition in rows(connection, query):
            found[f"{kind} {identity}"] = definition
    return dict(sorted(found.items()))
