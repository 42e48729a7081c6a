"""Reading a database the same way everywhere: one consistent moment, and settings under which values have one text.

Everything that turns contents into text (a digest, a difference) reads inside :func:`steady`, so that a session's time
zone, search path or output formats never enter.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from statefork.adapters.resources.reflink import Pulse, no_pulse

_PULSE_S = 0.1

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]

_SETTINGS = {
    "search_path": "pg_catalog",  # whatever prints names prints them with their schema
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",  # the shortest text that gives the same number again
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "row_security": "off",  # an error, where rows would be hidden, instead of a part of them
    "quote_all_identifiers": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_encoding": "UTF8",
}


@contextmanager
def steady(connection: Connection) -> Iterator[None]:
    """One read-only moment of the database, whoever writes meanwhile. The connection must be in no transaction."""
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE, "the connection is in use"
    with connection.transaction():
        run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        calls = ", ".join("pg_catalog.set_config(%s, %s, true)" for _ in _SETTINGS)
        run(connection, f"SELECT {calls}", *chain.from_iterable(_SETTINGS.items()))
        yield


def run(connection: Connection, statement: str, *values: object) -> None:
    """Run a statement whose result nobody wants."""
    with connection.cursor() as cursor:
        cursor.execute(statement.encode(), values or None)


def rows(connection: Connection, query: str, *values: object) -> list[Row]:
    """A small result, whole, as tuples whatever the connection's own row factory is."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode(), values or None).fetchall()


def value(connection: Connection, query: str, *values: object) -> Any:
    """The first column of the only row."""
    return rows(connection, query, *values)[0][0]


def stream(connection: Connection, query: str, rows_at_a_time: int = 1000) -> Iterator[Row]:
    """A large result, some rows at a time. Close the generator to let go of the cursor."""
    with connection.cursor(name="statefork_stream", row_factory=tuple_row) as cursor:
        cursor.itersize = rows_at_a_time
        cursor.execute(query.encode())
        yield from cursor


def copied(connection: Connection, query: str, pulse: Pulse = no_pulse) -> Iterator[bytes | memoryview]:
    """The rows of a query in PostgreSQL's text form, one line each, as they come; valid until the next one.

    It takes them from libpq itself: psycopg's own loop costs twice as much for a row. Waiting lets other threads run.
    """
    door = connection.pgconn
    done = False
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)

        def wait() -> None:
            while not selector.select(_PULSE_S):
                pulse()
            door.consume_input()

        door.send_query(f"COPY ({query}) TO STDOUT".encode())
        try:
            while door.flush():
                pulse()
            while door.is_busy():
                wait()
            _checked(door.get_result(), psycopg.pq.ExecStatus.COPY_OUT)
            while (got := door.get_copy_data(1))[0] >= 0:
                if got[0]:
                    yield got[1]
                else:
                    wait()
            done = True
        finally:
            if not done:
                connection.cancel_safe()
            last = _drained(door)
        _checked(last, psycopg.pq.ExecStatus.COMMAND_OK)


def _drained(door: PGconn) -> PGresult | None:
    """Take what still comes of the last query; its last result."""
    last = None
    while (result := door.get_result()) is not None:
        last = result
        if result.status == psycopg.pq.ExecStatus.COPY_OUT:
            while door.get_copy_data(0)[0] > 0:
                pass
    return last


def _checked(result: PGresult | None, wanted: psycopg.pq.ExecStatus) -> None:
    if result is None or result.status != wanted:
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("the server is gone")


def name(*parts: str) -> str:
    """A quoted identifier, with its schema where two parts are given."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(text: str) -> str:
    """A quoted string."""
    return "'" + text.replace("'", "''") + "'" if "\\" not in text else "E'" + _escaped(text) + "'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "''")
