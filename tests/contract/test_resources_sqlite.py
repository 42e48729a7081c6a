"""The resource conformance suite on SQLite, and what is particular to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from statefork.adapters.resources.conformance import Bench, ResourceConformance
from statefork.adapters.resources.sqlite import Options, SqliteResource
from statefork.engine.ports import Services
from statefork.journal.values import Binding


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
        connection.execute(
            "INSERT INTO pairs VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
        )
    connection.close()


def read(binding: Binding, key: str) -> str | None:
    connection = sqlite3.connect(str(binding.address["path"]), timeout=10)
    row = connection.execute("SELECT value FROM pairs WHERE key = ?", (key,)).fetchone()
    connection.close()
    return row[0] if row else None


def make(services: Services) -> SqliteResource:
    return SqliteResource("db", Options(base="base.sqlite3"), services)


class TestSqlite(ResourceConformance):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        make_base(tmp_path / "base.sqlite3")
        return Bench(make=make, write=write, read=read, state=tmp_path / "state", base_dir=tmp_path)
