"""What differs between two databases, in the user's terms: objects of the schema, rows, sequences, large objects.

Changed tables are found first, by sums of row hashes that the server makes of each; then, where a table has a key, the
parts of it that differ, by sums over ranges of a hash of the key; and only the rows of these parts are read, both sides
in the order of the key. Neither memory nor what is sent grows with the size of the databases.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from statefork.adapters.resources.postgres.catalog import Table, objects, sequences, tables
from statefork.adapters.resources.postgres.content import large_objects
from statefork.adapters.resources.postgres.reading import Connection, Row, name, rows, steady, stream
from statefork.adapters.resources.postgres.values import NUMBERS, readable, shown
from statefork.adapters.resources.reflink import Pulse, no_pulse
from statefork.engine.ports import Change
from statefork.journal.values import Json

_PARTS = 4096
_PARTS_NAMED_MAX = 1000  # with more that differ, the whole table is read
_ROWS_AT_A_TIME = 100  # a row may be large

_Keyed = tuple[tuple[Any, ...], tuple[Any, ...]]
"""What a row is known by, and its values."""


def changes(before: Connection, after: Connection, pulse: Pulse = no_pulse) -> Generator[Change, None, None]:
    """The differences: schema first, then sequences, large objects and rows. Close the generator to let go.

    Both connections are in no transaction, to databases of one server version, and used by nobody else meanwhile.
    """
    with steady(before), steady(after):
        yield from _mapping_changes(objects(before), objects(after), "(schema)")
        yield from _mapping_changes(_sequence_values(before), _sequence_values(after), "(sequences)")
        yield from _large_object_changes(before, after, pulse)
        old = {(table.schema, table.name): table for table in tables(before)}
        new = {(table.schema, table.name): table for table in tables(after)}
        for key in sorted(old.keys() | new.keys()):
            pulse()
            yield from _table_changes(before, after, old.get(key), new.get(key), pulse)


def _change(label: str, before: Json, after: Json, group: str) -> Change:
    kind = "added" if before is None else "removed" if after is None else "changed"
    return Change(kind=kind, name=label, before=before, after=after, group=group)


def _mapping_changes(old: dict[str, str], new: dict[str, str], group: str) -> Iterator[Change]:
    for label in sorted(old.keys() | new.keys()):
        was, now = old.get(label), new.get(label)
        if was != now:
            yield _change(label, was, now, group)


def _sequence_values(connection: Connection) -> dict[str, str]:
    return {
        f"sequence {sequence} value": f"{sequence.last_value}" + ("" if sequence.is_called else " (not used yet)")
        for sequence in sequences(connection)
    }


def _large_object_changes(before: Connection, after: Connection, pulse: Pulse) -> Iterator[Change]:
    old, new = (
        (((oid,), (content,)) for oid, content in large_objects(connection, pulse)) for connection in (before, after)
    )
    for was, now in merged(old, new):
        if was != now:
            some = was or now
            assert some is not None
            told = (was and {"sha256": was[1][0]}, now and {"sha256": now[1][0]})
            yield _change(f"large object {some[0][0]}", *told, "(large objects)")


def merged(old: Iterator[_Keyed], new: Iterator[_Keyed]) -> Iterator[tuple[_Keyed | None, _Keyed | None]]:
    """Pairs of rows with the same key, of two streams in the order of it; equal keys of one side count one by one."""
    left, right = next(old, None), next(new, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            yield left, None
            left = next(old, None)
        elif left is None or right[0] < left[0]:
            yield None, right
            right = next(new, None)
        else:
            yield left, right
            left, right = next(old, None), next(new, None)


def _table_changes(
    before: Connection, after: Connection, old: Table | None, new: Table | None, pulse: Pulse
) -> Iterator[Change]:
    if old is not None and new is not None and _comparable(old, new):
        yield from _row_changes(before, after, old, new, pulse)
        return
    for table, connection, gone in ((old, before, True), (new, after, False)):
        if table is not None:
            for row in _rows(connection, table, None, pulse):
                yield _row_change(table, row, gone=gone)


def _comparable(old: Table, new: Table) -> bool:
    """Rows of the two can be told to be the same ones: by the same key, else by being the same whole."""
    if not new.key:
        return not old.key and old.columns == new.columns
    return old.key == new.key and _key_is_number(old) == _key_is_number(new)


def _key_is_number(table: Table) -> list[bool]:
    types = dict(zip(table.columns, table.types, strict=True))
    return [types[column] in NUMBERS for column in table.key]


def _row_changes(before: Connection, after: Connection, old: Table, new: Table, pulse: Pulse) -> Iterator[Change]:
    common = tuple(column for column in new.columns if column in old.columns)
    pulse()
    differing = _differing_parts(before, after, old, new, common)
    if not differing:
        return
    parts = differing if len(differing) <= _PARTS_NAMED_MAX else None
    for was, now in merged(_rows(before, old, parts, pulse), _rows(after, new, parts, pulse)):
        if was is None or now is None:
            row, table = (now, new) if was is None else (was, old)
            assert row is not None
            yield _row_change(table, row, gone=now is None)
            continue
        left, right = dict(zip(old.columns, was[1], strict=True)), dict(zip(new.columns, now[1], strict=True))
        moved = tuple(column for column in common if left[column] != right[column])
        if moved:
            yield Change(
                kind="changed",
                name=_row_name(new, now),
                before=_readable(old, left, moved),
                after=_readable(new, right, moved),
                group=str(new),
            )


def _key(table: Table) -> list[str]:
    """What a row of ``x`` is known by, as expressions that Python orders as the server does."""
    if not table.key:  # the whole row, by no cast of its type's; its hash, as it may be long
        return ["encode(sha256(convert_to(ROW(x.*)::text, 'UTF8')), 'hex') COLLATE \"C\""]
    return [
        f"x.{name(column)}" if number else f'x.{name(column)}::text COLLATE "C"'
        for column, number in zip(table.key, _key_is_number(table), strict=True)
    ]


def _part(table: Table) -> str:
    """The number of the part that a row of ``x`` is in: of a hash of its key, else of the whole row."""
    key = f"ROW({', '.join(f'x.{name(column)}' for column in table.key) or 'x.*'})"
    return f'hashtextextended({key}::text COLLATE "C", 7) & {_PARTS - 1}'


def _parts(connection: Connection, table: Table, columns: tuple[str, ...]) -> dict[int, Row]:
    """Of each part of a table: how many rows it has, and two sums over hashes of them."""
    row = f'ROW({", ".join(f"x.{name(column)}" for column in columns)})::text COLLATE "C"'
    query = (
        f"SELECT part, count(*), sum(hashtextextended(line, 0)), sum(hashtextextended(line, 1)) "
        f"FROM (SELECT {_part(table)} AS part, {row} AS line FROM ONLY {name(table.schema, table.name)} x OFFSET 0) p "
        f"GROUP BY part"
    )
    return {part: tuple(sums) for part, *sums in rows(connection, query)}


def _differing_parts(
    before: Connection, after: Connection, old: Table, new: Table, columns: tuple[str, ...]
) -> list[int]:
    """Where the sums differ. The two servers' processes work at once."""
    with ThreadPoolExecutor(1, "statefork-postgres-diff") as aside:
        theirs = aside.submit(_parts, after, new, columns)
        left = _parts(before, old, columns)
        right = theirs.result()
    return sorted(part for part in left.keys() | right.keys() if left.get(part) != right.get(part))


def _rows(connection: Connection, table: Table, parts: list[int] | None, pulse: Pulse) -> Iterator[_Keyed]:
    """The rows of some parts of a table, or of all, in the order of the key."""
    key = _key(table)
    texts = [shown(column, kind) for column, kind in zip(table.columns, table.types, strict=True)]
    where = f"WHERE {_part(table)} = ANY ('{{{','.join(map(str, parts))}}}'::bigint[])" if parts is not None else ""
    query = (
        f"SELECT {', '.join([*key, *texts])} FROM ONLY {name(table.schema, table.name)} x {where} "
        f"ORDER BY {', '.join(map(str, range(1, len(key) + 1)))}"
    )
    for number, row in enumerate(stream(connection, query, _ROWS_AT_A_TIME)):
        yield row[: len(key)], row[len(key) :]
        if number % _ROWS_AT_A_TIME == 0:
            pulse()


def _row_change(table: Table, row: _Keyed, *, gone: bool) -> Change:
    values = _readable(table, dict(zip(table.columns, row[1], strict=True)), table.columns)
    return _change(_row_name(table, row), values if gone else None, None if gone else values, str(table))


def _row_name(table: Table, row: _Keyed) -> str:
    """``products[12]``, ``prices[12, EUR]``; a row without a key has the table's name alone."""
    return f"{table}[{', '.join(map(str, row[0]))}]" if table.key else str(table)


def _readable(table: Table, texts: dict[str, str | None], columns: tuple[str, ...]) -> dict[str, Json]:
    types = dict(zip(table.columns, table.types, strict=True))
    return {column: readable(texts[column], types[column]) for column in columns}
