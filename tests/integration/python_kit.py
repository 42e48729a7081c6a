"""The notice board on both Python stacks: its base, its server under an engine, and raw readers of its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from tests.integration.postgres_kit import run

SITES = Path(__file__).parent / "pysites"
TABLES = """
CREATE TABLE notes (id {serial}, title varchar(80) NOT NULL, body text NOT NULL);
CREATE TABLE sessions (token varchar(80) PRIMARY KEY, person varchar(80) NOT NULL);
CREATE TABLE jobs (id {serial}, word varchar(80) NOT NULL);
CREATE TABLE settings (name varchar(80) PRIMARY KEY, value text NOT NULL);
INSERT INTO notes (title, body) VALUES ('first', 'of the base');
INSERT INTO settings VALUES ('banner', 'of the base');
"""
VISITS = "CREATE TABLE visits (id integer PRIMARY KEY, path varchar(80) NOT NULL);"
CONTRACT = """
[contract]
name = "board"
{databases}
[resources.media]
adapter = "files"
base = "media"
durability = "authoritative"

[resources.board]
adapter = "web"
stack = "{stack}"
settings = "{settings}"
path = "{path}"
host = "board.example"
grace_s = 0.2
durability = "derived"
depends_on = [{names}]
stores = {{ {stores} }}
"""
SQLITE = """
[resources.{name}]
adapter = "sqlite"
base = "{name}.sqlite3"
durability = "authoritative"
"""
POSTGRES = """
[resources.db]
adapter = "postgres"
base = "db.sql"
durability = "authoritative"
pool = 2
settings = { shared_buffers = "32MB", max_wal_size = "64MB", min_wal_size = "32MB" }
"""


class Board(Protocol):
    """What differs between the two."""

    stack: str
    settings: str
    stores: dict[str, str]
    databases: str
    left: str  # what the drain calls what ``later`` leaves
    guards: dict[str, str]  # the guard that is taken away, and the check that then fails

    def build(self, directory: Path) -> None: ...

    def rows(self, env: Environment, statement: str) -> list[tuple[Any, ...]]: ...


class FlaskBoard:
    """Over SQLite."""

    stack = "wsgi"
    settings = "wsgi_site:application"
    stores: ClassVar = {"database": "db", "media": "media"}
    databases = SQLITE.format(name="db")
    left = "thread courier"
    guards: ClassVar = {
        "stores": "separate",
        "pools": "pooled",
        "owners": "owned",
        "caches": "nothing_stays",
        "audit": "unbound",
        "jobs": "jobs",
        "threads": "work",
        "closing": "closed",
        "chance": "drawn",
    }

    def build(self, directory: Path) -> None:
        """The base."""
        _make_sqlite(directory / "db.sqlite3", TABLES.format(serial="integer PRIMARY KEY"))

    def rows(self, env: Environment, statement: str) -> list[tuple[Any, ...]]:
        """Read without the server."""
        with closing(sqlite3.connect(str(env.bindings["db"].address["path"]))) as raw:
            return raw.execute(statement).fetchall()


class StarletteBoard:
    """Over PostgreSQL, and SQLite beside it."""

    stack = "asgi"
    settings = "asgi_site:application"
    stores: ClassVar = {"database": "db", "database.visits": "visits", "media": "media"}
    databases = POSTGRES + SQLITE.format(name="visits")
    left = "job what GET /later left to do"
    guards: ClassVar = {**FlaskBoard.guards, "threads": "separate", "errands": "work"}

    def build(self, directory: Path) -> None:
        """The base."""
        (directory / "db.sql").write_text(TABLES.format(serial="serial PRIMARY KEY"))
        _make_sqlite(directory / "visits.sqlite3", VISITS)

    def rows(self, env: Environment, statement: str) -> list[tuple[Any, ...]]:
        """Read without the server."""
        return run(env, statement)


def _make_sqlite(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as made:
        made.executescript(statements)


class Stage:
    """One board's engine, and the clients of its environments."""

    def __init__(self, board: Board, engine: Engine, directory: Path) -> None:
        self.board = board
        self.engine = engine
        self.directory = directory
        self.web: Any = engine.kernel.resources["board"]

    @asynccontextmanager
    async def client(self, env: Environment) -> AsyncIterator[httpx.AsyncClient]:
        """Somebody at the environment's base URL."""
        async with httpx.AsyncClient(base_url=env.base_url("board"), timeout=60, trust_env=False) as client:
            yield client

    async def ask(self, client: httpx.AsyncClient, name: str, **asked: str) -> Any:
        """One of the tests' own pages."""
        answer = await client.get(f"/checked/{name}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def binding(self, env: Environment) -> dict[str, Any]:
        """What the server says of an environment's binding."""
        found = (await self.web.server.call("stats"))["bindings"]
        return next(one for one in found if one["identity"].startswith(f"{env.name}/"))


def write_contract(board: Board, directory: Path, *, change: Callable[[str], str] = str) -> Path:
    """A base and a contract over it."""
    directory.mkdir(parents=True)
    (directory / "media").mkdir()
    board.build(directory)
    text = CONTRACT.format(
        databases=board.databases,
        stack=board.stack,
        settings=board.settings,
        path=SITES,
        names=", ".join(f'"{name}"' for name in board.stores.values()),
        stores=", ".join(f'"{kind}" = "{name}"' for kind, name in board.stores.items()),
    )
    (directory / "board.toml").write_text(change(text))
    return directory / "board.toml"


@asynccontextmanager
async def staged(board: Board, directory: Path) -> AsyncIterator[Stage]:
    """The board's server, with no environment yet."""
    contract = write_contract(board, directory / "base")
    async with open_engine(contract, state=directory / "state") as engine:
        yield Stage(board, engine, directory)


def knows_statefork(path: Path) -> bool:
    """Whether a module imports statefork."""
    lines = path.read_text().splitlines()
    return any("statefork" in line for line in lines if line.strip().startswith(("import ", "from ")))
