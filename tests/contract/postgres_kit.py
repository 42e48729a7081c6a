"""How the tests make and touch databases on servers: psycopg, no code of the adapter."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from statefork.adapters.resources.conformance import Bench
from statefork.adapters.resources.postgres import Options, PostgresResource, make
from statefork.adapters.resources.postgres.backend import Backend, Server
from statefork.adapters.resources.postgres.binaries import server_programs
from statefork.adapters.resources.postgres.configuration import server_settings
from statefork.adapters.resources.postgres.external import ExternalServer
from statefork.adapters.resources.postgres.server import EmbeddedServer, Setup
from statefork.adapters.resources.postgres.trees import copy_cluster
from statefork.adapters.resources.reflink import no_pulse
from statefork.engine.ports import Services
from statefork.journal.values import Binding

UPSERT = "INSERT INTO pairs VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
BASE = """
CREATE TABLE pairs (key text PRIMARY KEY, value text);
CREATE INDEX by_value ON pairs (value);
CREATE TABLE log (line text);
INSERT INTO log SELECT 'line ' || n FROM generate_series(1, 200) n;
"""
ROOM_BYTES = 1 << 30
SMALL = {"shared_buffers": "32MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}


def options(**more: Any) -> Options:
    """What the tests' resources are made with, unless they say otherwise."""
    return Options(**{"base": "base.sql", "pool": 0, **more})


def setup_at(state: Path, *, name: str = "db", journal: str = "tests", **settings: str) -> Setup:
    """A small server below a state directory."""
    return Setup(
        name=name,
        state=state,
        journal=journal,
        place=state / "resources" / name / "server",
        settings=server_settings(options(settings={**SMALL, "max_connections": "60", **settings})),
    )


def in_memory() -> Path | None:
    """A directory in memory, where there is room: a database is some 300 files, and the tests make hundreds."""
    place = Path("/dev/shm")
    roomy = os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOM_BYTES
    return place if roomy else None


@contextmanager
def cluster(parent: Path | None = None) -> Iterator[EmbeddedServer]:
    """A server for many tests, which come with journals of their own."""
    place = Path(tempfile.mkdtemp(dir=parent or in_memory()))  # a short path, so that it has a socket
    server = EmbeddedServer(setup_at(place, name="shared"))
    try:
        server.acquire()
        yield server
    finally:
        server.release()
        shutil.rmtree(place)


def dsn(server: Server) -> str:
    """The superuser's connection string."""
    return conninfo.make_conninfo("", **server.address())


@contextmanager
def cleared(server: Server) -> Iterator[Server]:
    """A server from which everything that a test made is removed, so that the next finds none of its journals."""
    try:
        yield server
    finally:
        with psycopg.connect(dsn(server), autocommit=True) as connection:
            query = "SELECT datname, datistemplate FROM pg_database WHERE datname NOT LIKE 'template_'"
            for name, template in connection.execute(query).fetchall():
                if name == "postgres":
                    continue
                if template:
                    connection.execute(f'ALTER DATABASE "{name}" IS_TEMPLATE false')
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            query = "SELECT rolname FROM pg_roles WHERE rolname <> 'postgres' AND rolname NOT LIKE 'pg\\_%'"
            for (name,) in connection.execute(query).fetchall():
                connection.execute(f'DROP ROLE "{name}"')


@contextmanager
def opened(binding: Binding) -> Iterator[psycopg.Connection[Any]]:
    """A connection as the application's."""
    address = dict(binding.address)
    with psycopg.connect(dbname=address.pop("name"), autocommit=True, **address) as connection:  # type: ignore[arg-type]  # text and numbers
        yield connection


def run(binding: Binding, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as the application would; the last one's rows, if it has any."""
    with opened(binding) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def write(binding: Binding, key: str, value: str) -> None:
    with opened(binding) as connection:
        connection.execute(UPSERT, (key, value))


def read(binding: Binding, key: str) -> str | None:
    with opened(binding) as connection:
        row = connection.execute("SELECT value FROM pairs WHERE key = %s", (key,)).fetchone()
    return row[0] if row else None


def settled(resource: PostgresResource) -> None:
    """The pool is full, nothing waits to be removed."""
    if isinstance(resource.backend, Backend):
        resource.backend.workshop.settle()
    resource._sums.stop()


def bench_on(server: Server, tmp_path: Path, base: str = BASE, **more: Any) -> Bench:
    """A bench whose resources use a server that is there."""
    (tmp_path / "base.sql").write_text(base)
    more = {"base": "base.sql" if base else "", **more}

    def make(services: Services) -> PostgresResource:
        return PostgresResource("db", options(**more), services, server)

    return Bench(make=make, write=write, read=read, state=tmp_path / "state", base_dir=tmp_path, settle=settled)


def reuse_clusters(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    """Make each kind of new cluster once and copy it afterwards: initdb takes seconds."""
    make_new = EmbeddedServer._initialise

    def initialise(server: EmbeddedServer) -> None:
        version = server_programs(server.setup.programs).version
        cluster = kept / f"cluster-{version}{'-'.join(server.setup.initdb)}"
        if not cluster.exists():
            make_new(server)
            cluster.mkdir()
            copy_cluster(server.setup.place, cluster, reflink=False, pulse=no_pulse)
        else:
            copy_cluster(cluster, server.setup.place, reflink=False, pulse=no_pulse)

    monkeypatch.setattr(EmbeddedServer, "_initialise", initialise)


def private_bench(state: Path, base_dir: Path, **more: Any) -> Bench:
    """A bench whose environments have servers of their own."""
    (base_dir / "base.sql").write_text(BASE)
    wanted = options(**{"strategy": "private", "settings": SMALL, **more})

    def made(services: Services) -> PostgresResource:
        return make("db", wanted, services)

    return Bench(make=made, write=write, read=read, state=state, base_dir=base_dir, settle=settled)


def by_dsn(server: Server) -> ExternalServer:
    """A server of ours, seen as somebody else's."""
    return ExternalServer("db", dsn(server))
