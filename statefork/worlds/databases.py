"""A PostgreSQL server for the while in which a world's base is made, and the dump of what it holds then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import make_conninfo

from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.configuration import server_settings
from statefork.adapters.resources.postgres.connecting import Address, Admin
from statefork.adapters.resources.postgres.options import CONNECTIONS_MIN, Options
from statefork.adapters.resources.postgres.programs import Program, environment
from statefork.adapters.resources.postgres.server import EmbeddedServer, Setup
from statefork.engine.errors import ResourceFailed


@contextmanager
def scratch_database(partial: Path, name: str) -> Iterator[Address]:
    """How the superuser reaches an empty database, on a server that is gone before ``partial`` is whole."""
    place = partial / "server"
    settings = server_settings(Options(base=f"{name}.sql", max_connections=CONNECTIONS_MIN))
    server = EmbeddedServer(Setup(name=name, state=place, journal="build", place=place / "cluster", settings=settings))
    server.acquire()
    try:
        Admin(name, server.address()).run(f"CREATE DATABASE {name} TEMPLATE template0")
        yield {**server.address(), "dbname": name}
    finally:
        server.release()
        remove_tree(place)


def client_variables(address: Address) -> dict[str, str]:
    """libpq's own variables for an address."""
    return {key: value for key, value in environment(make_conninfo("", **address)).items() if key.startswith("PG")}


def dump(address: Address, file: Path, pulse: Callable[[], None]) -> None:
    """One SQL file; its rows lie in the order in which they were made. Raises ResourceFailed."""
    name = file.stem
    command: list[str | Path] = [find_programs() / "pg_dump", "--no-owner", "--no-privileges", f"--file={file}"]
    command += [f"--restrict-key={name}"]  # else it is random
    with Program(command, environment(make_conninfo("", **address))) as running:
        if running.failed(pulse):
            raise ResourceFailed(f"the database of the {name} could not be dumped: {running.said()}", resource=name)
