"""What an evaluator asks an environment's database: one statement, read only, as the environment's own applications."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any

from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Binding, Json

STATEMENT_S_MAX = 30
CONNECT_S_MAX = 10
_DIGITS_MAX = 15  # of a number that a float holds as it is written

Row = dict[str, Json]


def ask_sqlite(binding: Binding, sql: str, parameters: tuple[Json, ...]) -> list[Row]:
    """Rows of a statement on a database file that is opened for reading only."""
    with closing(sqlite3.connect(f"file:{binding.address['path']}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, parameters)]


def ask_postgres(binding: Binding, sql: str, parameters: tuple[Json, ...]) -> list[Row]:
    """Rows of a statement in a read-only transaction of the branch's role, which has STATEMENT_S_MAX to end.

    The session is gone when this returns, as its having been there would count as use of the database.
    """
    import psycopg
    from psycopg.rows import dict_row

    address = {_KEYWORDS[key]: str(value) for key, value in binding.address.items()}
    limits = f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_S_MAX}s"
    try:
        door = psycopg.conninfo.make_conninfo("", **address, options=limits, connect_timeout=CONNECT_S_MAX)
        with psycopg.connect(door, cursor_factory=psycopg.RawCursor) as connection:
            # prepared: so that it is one statement, and none can follow a COMMIT
            cursor = connection.cursor(row_factory=dict_row).execute(
                numbered(sql, len(parameters)).encode(), parameters or None, prepare=True
            )
            rows: list[dict[str, Any]] = cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        said = (error.diag.message_primary or str(error)).strip()
        raise ResourceFailed(
            f"{binding.resource}: the query failed: {said}", resource=binding.resource, sqlstate=error.sqlstate
        ) from error
    return [{name: plain(value) for name, value in row.items()} for row in rows]


_KEYWORDS = {"name": "dbname", "user": "user", "password": "password", "host": "host", "port": "port"}

_TOKEN = re.compile(
    r"""(?P<kept>'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)|\?""", re.DOTALL
)


def numbered(sql: str, parameters: int) -> str:
    """``?`` as ``$1``, ``$2``, …; a statement with another number of them is left alone: there they are operators."""
    found = 0

    def number(match: re.Match[str]) -> str:
        nonlocal found
        if match["kept"] is not None:
            return match[0]
        found += 1
        return f"${found}"

    text = _TOKEN.sub(number, sql)
    return text if found == parameters else sql


def plain(value: Any) -> Any:
    """A value of PostgreSQL as JSON has it, or bytes."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Decimal():
            return _number(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case _:
            return str(value)


def _number(value: Decimal) -> Json:
    """A float where that holds it as it is written, else text."""
    exact = value.is_finite() and len(value.as_tuple().digits) <= _DIGITS_MAX
    return float(value) if exact else str(value)


QUERIES: Mapping[str, Callable[[Binding, str, tuple[Json, ...]], list[Row]]] = {
    "sqlite": ask_sqlite,
    "postgres": ask_postgres,
}
