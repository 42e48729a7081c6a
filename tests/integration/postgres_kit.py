"""PostgreSQL under an engine's environments, as tests reach it: with psycopg, through the bindings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.postgres_server import missing_postgres
from tests.integration.web_kit import build_base

if TYPE_CHECKING:
    import psycopg

    from statefork.adapters.interfaces.environment import Environment
    from statefork.adapters.interfaces.python import Engine
    from statefork.adapters.resources.postgres import PostgresResource

needs_postgres = pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres() or "PostgreSQL is here")


@contextmanager
def session(address: Mapping[str, str | int]) -> Iterator[psycopg.Connection[Any]]:
    """A session as applications have one, by a binding's address; each statement is a transaction."""
    import psycopg

    names = {"dbname" if key == "name" else key: value for key, value in address.items()}
    with psycopg.connect(psycopg.conninfo.make_conninfo("", **names), autocommit=True) as connection:
        yield connection


@contextmanager
def connected(env: Environment) -> Iterator[psycopg.Connection[Any]]:
    """A session in an environment's database."""
    with session(env.bindings["db"].address) as connection:
        yield connection


def run(env: Environment, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """One statement, in a session of its own."""
    with connected(env) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def database(engine: Engine) -> PostgresResource:
    """The resource behind all environments' databases."""
    from statefork.adapters.resources.postgres import PostgresResource

    resource = engine.kernel.resources["db"]
    assert isinstance(resource, PostgresResource)
    return resource


def build_notes(directory: Path, server: str) -> Path:
    """The notes project's base over PostgreSQL, built in a database for the while: ``notes.sql``, media and index."""
    import psycopg

    from statefork.adapters.resources.postgres.binaries import find_programs
    from statefork.adapters.resources.postgres.programs import environment

    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("CREATE DATABASE notes")
        try:
            there = environment(psycopg.conninfo.make_conninfo(server, dbname="notes"))
            door = {name: value for name, value in there.items() if name.startswith("PG")}
            build_base(directory, NOTES_DATABASE="postgresql", **door)
            dump = [find_programs() / "pg_dump", "--no-owner", "--no-privileges", f"--file={directory / 'notes.sql'}"]
            subprocess.run(dump, env=there, check=True, timeout=60)
        finally:
            admin.execute("DROP DATABASE notes WITH (FORCE)")
    return directory
