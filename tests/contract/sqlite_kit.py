"""How the tests make and touch databases: the standard library's SQLite, no code of the adapter."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.sqlite import Options, SqliteResource
from statefork.engine.ports import Services
from statefork.journal.values import Binding

UPSERT = "INSERT INTO pairs VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"


def make_base(path: Path) -> None:
    """A small database with a keyed table, an index, a table without a key, and some rows."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE pairs (key TEXT PRIMARY KEY, value TEXT)")
        connection.execute("CREATE INDEX by_value ON pairs (value)")
        connection.execute("CREATE TABLE log (line TEXT)")
        connection.executemany("INSERT INTO log VALUES (?)", [(f"line {n}",) for n in range(200)])
    connection.close()


def write(binding: Binding, key: str, value: str) -> None:
    connection = sqlite3.connect(str(binding.address["path"]), timeout=10)
    with connection:
        connection.execute(UPSERT, (key, value))
    connection.close()


def read(binding: Binding, key: str) -> str | None:
    connection = sqlite3.connect(str(binding.address["path"]), timeout=10)
    row = connection.execute("SELECT value FROM pairs WHERE key = ?", (key,)).fetchone()
    connection.close()
    return row[0] if row else None


def make(services: Services) -> SqliteResource:
    return SqliteResource("db", Options(base="base.sqlite3"), services)


def settled(resource: SqliteResource) -> None:
    """Every sealed layer has its sums."""
    resource._sums.stop(threading.TIMEOUT_MAX)


def bench_in(state: Path, base_dir: Path) -> Bench:
    make_base(base_dir / "base.sqlite3")
    return Bench(make=make, write=write, read=read, state=state, base_dir=base_dir, settle=settled)
