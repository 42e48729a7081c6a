"""What a database file holds, apart from how its pages lie: a digest of it, and the differences between two.

Schema objects are compared by their SQL. Rows are taken in key order: the declared primary key, else the whole row
(a bare rowid is not a key: VACUUM may give other numbers). A virtual table is what its shadow tables hold. Planner
statistics (``sqlite_stat*``) are no content. Files are opened immutable: sealed versions have no WAL.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from statefork.adapters.resources.reflink import Pulse, no_pulse
from statefork.engine.masks import Column
from statefork.engine.ports import Change
from statefork.journal.values import Json

_SCHEMA = (
    "SELECT type, name, coalesce(sql, '') FROM {db}.sqlite_schema "
    "WHERE name NOT LIKE 'sqlite_stat%' AND name NOT LIKE 'sqlite_autoindex%' ORDER BY type, name"
)
_NUMBERS = ("user_version", "application_id")
_SCHEMA_GROUP = "(schema)"
_PULSE_ROWS = 1000
_TEXT_CHARACTERS_MAX = 4000
_BLOB_BYTES_MAX = 64


class _Table(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]  # empty: the table has no declared primary key


def content_digest(path: Path, pulse: Pulse = no_pulse, without: frozenset[Column] = frozenset()) -> str:
    """SHA-256, in hex, of everything that SQL can see: schema, version numbers, rows with their exact types.

    ``without``: columns whose values are left out.
    """
    whole = hashlib.sha256()
    connection = _open(path)
    try:
        numbers = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _NUMBERS]
        _feed(whole, ("statefork sqlite content", 1, *numbers))
        for row in connection.execute(_SCHEMA.format(db="main")):
            _feed(whole, row)
        for table in _tables(connection, "main").values():
            _feed(whole, (table.name, *table.columns))
            for number, row in enumerate(connection.execute(_ordered(_left(table, without)))):
                _feed(whole, row)
                if number % _PULSE_ROWS == 0:
                    pulse()
    finally:
        connection.close()
    return whole.hexdigest()


def changes(before: Path, after: Path) -> Generator[Change, None, None]:
    """The differences: schema first, then row by row. Close the generator to let go of the files."""
    connection = _open(after)
    try:
        connection.execute("ATTACH ? AS old", (_uri(before),))
        yield from _schema_changes(connection)
        old, new = _tables(connection, "old"), _tables(connection, "main")
        for name in sorted(old.keys() | new.keys()):
            yield from _table_changes(connection, old.get(name), new.get(name))
    finally:
        connection.close()


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path), uri=True, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    return connection


def _uri(path: Path) -> str:
    return f"{path.as_uri()}?mode=ro&immutable=1"


def _text(data: bytes) -> object:
    """Text that is no UTF-8 becomes a list, which no value of SQLite is otherwise."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ["text", data]


def _feed(whole: hashlib._Hash, row: tuple[object, ...]) -> None:
    """Rows are self-delimiting in MessagePack, and 1, 1.0, '1' and x'31' differ in it."""
    whole.update(msgspec.msgpack.encode(row))


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _tables(connection: sqlite3.Connection, db: str) -> dict[str, _Table]:
    found = {}
    for _, name, kind, *_ in connection.execute(f"PRAGMA {db}.table_list").fetchall():
        # table_list tells the schema of every row first; with a schema named it lists that one alone
        if kind not in ("table", "shadow") or name in ("sqlite_schema", "sqlite_temp_schema"):
            continue
        if name.startswith("sqlite_stat"):
            continue
        rows = connection.execute(f"PRAGMA {db}.table_xinfo({_name(name)})").fetchall()
        kept = [(column, position) for _, column, _, _, _, position, hidden in rows if hidden in (0, 2, 3)]
        columns = tuple(column for column, _ in kept)
        key = tuple(column for column, position in sorted(kept, key=lambda item: item[1]) if position)
        if name == "sqlite_sequence":  # SQLite declares none, and keeps one row for each table
            key = ("name",)
        found[name] = _Table(name, columns, key)
    return dict(sorted(found.items()))


def _left(table: _Table, without: frozenset[Column]) -> _Table:
    """A table without some columns. Where these are of its key, no row is known by what is left of that."""
    gone = {column.name.lower() for column in without if column.table.lower() == table.name.lower()}
    if not gone:
        return table
    columns = tuple(column for column in table.columns if column.lower() not in gone)
    return _Table(table.name, columns, () if any(column.lower() in gone for column in table.key) else table.key)


def _ordered(table: _Table) -> str:
    columns = ", ".join(map(_name, table.columns)) or "NULL"
    # A declared key may still hold NULLs, many times: the rest of the row decides then.
    order = [f"{_name(column)} COLLATE BINARY" for column in table.key]
    if not table.key:
        order = [f"quote({_name(column)})" for column in table.columns] or ["1"]
    return f"SELECT {columns} FROM {_name(table.name)} ORDER BY {', '.join(order)}"


def _schema_changes(connection: sqlite3.Connection) -> Iterator[Change]:
    old, new = (
        {f"{kind} {name}": sql for kind, name, sql in connection.execute(_SCHEMA.format(db=db))}
        for db in ("old", "main")
    )
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield _change(name, old.get(name), new.get(name))
    for number in _NUMBERS:
        was, now = (connection.execute(f"PRAGMA {db}.{number}").fetchone()[0] for db in ("old", "main"))
        if was != now:
            yield Change(kind="changed", name=number, before=was, after=now, group=_SCHEMA_GROUP)


def _table_changes(connection: sqlite3.Connection, old: _Table | None, new: _Table | None) -> Iterator[Change]:
    if old is not None and new is not None and old.key == new.key and new.key:
        yield from _keyed_changes(connection, old, new)
        return
    if old is not None and new is not None and old.columns == new.columns:
        yield from _bag_changes(connection, new)
        return
    for table, db, gone in ((old, "old", True), (new, "main", False)):
        if table is not None:
            for row in _rows(connection, db, table, ""):
                yield _row_change(table, row, gone=gone)


def _rows(connection: sqlite3.Connection, db: str, table: _Table, where: str) -> Iterator[dict[str, Json]]:
    columns = ", ".join(f"x.{_name(column)}" for column in table.columns)
    order = ", ".join(f"x.{_name(column)}" for column in table.key or table.columns)
    for row in connection.execute(f"SELECT {columns} FROM {db}.{_name(table.name)} x {where} ORDER BY {order}"):
        yield {column: _json(value) for column, value in zip(table.columns, row, strict=True)}


def _keyed_changes(connection: sqlite3.Connection, old: _Table, new: _Table) -> Iterator[Change]:
    same_key = " AND ".join(f"x.{_name(column)} IS y.{_name(column)}" for column in new.key)
    missing = "WHERE NOT EXISTS (SELECT 1 FROM {db}.{table} y WHERE {same})"
    for table, db, other in ((old, "old", "main"), (new, "main", "old")):
        where = missing.format(db=other, table=_name(table.name), same=same_key)
        for row in _rows(connection, db, table, where):
            yield _row_change(table, row, gone=db == "old")
    common = [column for column in new.columns if column in old.columns]
    differ = " OR ".join(
        f"x.{c} IS NOT y.{c} COLLATE BINARY OR typeof(x.{c}) <> typeof(y.{c})" for c in map(_name, common)
    )
    pairs = ", ".join(f"y.{_name(column)}, x.{_name(column)}" for column in common)
    table_name = _name(new.name)
    query = (
        f"SELECT {pairs} FROM main.{table_name} x JOIN old.{table_name} y ON {same_key} WHERE {differ} "
        f"ORDER BY {', '.join('x.' + _name(column) for column in new.key)}"
    )
    for row in connection.execute(query):
        was = {column: row[2 * at] for at, column in enumerate(common)}
        now = {column: row[2 * at + 1] for at, column in enumerate(common)}
        moved = [c for c in common if was[c] != now[c] or type(was[c]) is not type(now[c])]
        key = {column: _json(now[column]) for column in new.key}
        yield Change(
            kind="changed",
            name=_row_name(new, key),
            before={column: _json(was[column]) for column in moved},
            after={column: _json(now[column]) for column in moved},
            group=new.name,
        )


def _bag_changes(connection: sqlite3.Connection, table: _Table) -> Iterator[Change]:
    """Rows without a key: those that one side has more often than the other."""
    columns = ", ".join(map(_name, table.columns))
    counted = "SELECT {columns}, sum(side) FROM (SELECT {columns}, 1 AS side FROM main.{name} UNION ALL SELECT {columns}, -1 FROM old.{name}) GROUP BY {group} HAVING sum(side) <> 0 ORDER BY {group}"  # noqa: E501 - one statement reads best whole
    group = ", ".join(f"quote({_name(column)})" for column in table.columns)
    for *row, surplus in connection.execute(counted.format(columns=columns, name=_name(table.name), group=group)):
        shown = {column: _json(value) for column, value in zip(table.columns, row, strict=True)}
        for _ in range(abs(surplus)):
            yield _row_change(table, shown, gone=surplus < 0)


def _row_change(table: _Table, row: dict[str, Json], *, gone: bool) -> Change:
    return _change(_row_name(table, row), row if gone else None, None if gone else row, table.name)


def _change(name: str, before: Json, after: Json, group: str = _SCHEMA_GROUP) -> Change:
    kind = "added" if before is None else "removed" if after is None else "changed"
    return Change(kind=kind, name=name, before=before, after=after, group=group)


def _row_name(table: _Table, row: dict[str, Json]) -> str:
    """``products[12]``, ``prices[12, EUR]``; a row without a key has the table's name alone."""
    return f"{table.name}[{', '.join(str(row[column]) for column in table.key)}]" if table.key else table.name


def _json(value: object) -> Json:
    """A value that a journal, a terminal and a web page can show; what is long is cut and says so."""
    if isinstance(value, list):
        return {"text_hex": value[1][:_BLOB_BYTES_MAX].hex(), "bytes": len(value[1])}
    if isinstance(value, bytes):
        if len(value) <= _BLOB_BYTES_MAX:
            return {"hex": value.hex()}
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, str) and len(value) > _TEXT_CHARACTERS_MAX:
        return f"{value[:_TEXT_CHARACTERS_MAX]}… ({len(value)} characters)"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    assert value is None or isinstance(value, bool | int | float | str)
    return value
