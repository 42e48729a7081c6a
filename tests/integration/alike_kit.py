"""Every stack behind the web resource, used alike: what differs is how its pages, rows and leftovers are reached."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import EnvironmentRetired
from tests.integration import node_kit, python_kit, stack_kit
from tests.integration.postgres_kit import needs_postgres, run
from tests.integration.stack_kit import picture

PAGE_ROWS = """
    SELECT page_id, old_text FROM mediawiki.page JOIN mediawiki.slots ON slot_revision_id = page_latest
    JOIN mediawiki.content ON content_id = slot_content_id
    JOIN mediawiki.text ON 'tt:' || old_id = content_address WHERE lower(page_title) = lower(%s)"""
_numbers = itertools.count(1)


class Alike(ABC):
    """One stack's engine with its server, and somebody who uses its site."""

    page: str
    """One that it shows to everybody."""
    endless = "/checked/endless"
    """A request that does not end by itself."""
    on_postgres = True

    def __init__(self, stage: Any, resource: str, contract: str) -> None:
        self.stage = stage
        self.resource = resource
        self.engine: Engine = stage.engine
        self.web: Any = stage.web
        self.directory: Path = stage.directory
        self.contract = self.directory / "base" / contract

    @abstractmethod
    async def login(self, client: httpx.AsyncClient) -> None: ...

    @abstractmethod
    async def is_logged_in(self, client: httpx.AsyncClient) -> bool: ...

    @abstractmethod
    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> None: ...

    @abstractmethod
    def rows(self, env: Environment, title: str) -> list[tuple[int, str]]:
        """Keys and texts of what has a title, read without the server."""

    @abstractmethod
    async def upload(self, client: httpx.AsyncClient, data: bytes) -> None:
        """A file of a name that everybody uses."""

    @abstractmethod
    async def later(self, client: httpx.AsyncClient, pipe: Path, word: str) -> None:
        """What goes on after its answer, and writes the word when the pipe says so."""

    @abstractmethod
    def told_later(self, env: Environment) -> str:
        """The words that were written so."""

    @asynccontextmanager
    async def at(self, url: str, cookies: str = "") -> AsyncIterator[httpx.AsyncClient]:
        """Somebody at a base URL; ``cookies`` are said whatever the site answers."""
        said = {"Cookie": cookies} if cookies else {}
        client = httpx.AsyncClient(base_url=url, headers=said, timeout=60, trust_env=False, follow_redirects=True)
        async with client:
            yield client

    @asynccontextmanager
    async def client(self, env: Environment, cookies: str = "") -> AsyncIterator[httpx.AsyncClient]:
        """The same at an environment's."""
        async with self.at(env.base_url(self.resource), cookies) as client:
            yield client

    async def knows(self, env: Environment, cookies: str) -> bool:
        """Whether who says these cookies is logged in."""
        async with self.client(env, cookies) as client:
            return await self.is_logged_in(client)

    def media(self, env: Environment) -> Path:
        """Where the environment's uploads are."""
        return Path(str(env.bindings["media"].address["path"]))

    def has(self, env: Environment, data: bytes) -> bool:
        """Whether a file among the uploads holds just that."""
        return any(path.read_bytes() == data for path in self.media(env).rglob("*") if path.is_file())

    @asynccontextmanager
    async def people(self, count: int = 1) -> AsyncIterator[list[tuple[Environment, httpx.AsyncClient]]]:
        """New environments, and somebody who is logged in in each."""
        async with AsyncExitStack() as stack:
            made = []
            for _ in range(count):
                env = await self.engine.create(f"c{next(_numbers)}")
                made.append((env, await stack.enter_async_context(self.client(env))))
                await self.login(made[-1][1])
            yield made
            for env, _ in made:
                with suppress(EnvironmentRetired):
                    await env.retire()


def said(client: httpx.AsyncClient) -> str:
    """The cookies of a client, as the header says them."""
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.cookies.jar)


class Packaged(Alike):
    """Redmine on Rack, MediaWiki on PHP-FPM."""

    def __init__(self, stage: stack_kit.Stage) -> None:
        super().__init__(stage, stage.site.name, "world.toml")
        self.site = stage.site
        self.page = {"tracker": "/", "wiki": "/wiki/Main_Page"}[self.resource]

    async def login(self, client: httpx.AsyncClient) -> None:
        await self.site.login(client)

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return await self.site.is_logged_in(client)

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> None:
        await self.site.add(client, title, text)

    def rows(self, env: Environment, title: str) -> list[tuple[int, str]]:
        of_tracker = "SELECT id, description FROM issues WHERE subject = %s ORDER BY id"
        return [(row[0], row[1]) for row in run(env, PAGE_ROWS if self.resource == "wiki" else of_tracker, title)]

    async def upload(self, client: httpx.AsyncClient, data: bytes) -> None:
        await self.site.upload(client, "lamp.png", data)

    async def later(self, client: httpx.AsyncClient, pipe: Path, word: str) -> None:
        await self.stage.ask(client, "later", pipe=str(pipe), text=word)

    def told_later(self, env: Environment) -> str:
        return self.site.told_later(env)


class Small(Alike):
    """The board on WSGI with SQLite and on ASGI with PostgreSQL."""

    page = "/notes"
    endless = "/endless"

    def __init__(self, stage: python_kit.Stage) -> None:
        super().__init__(stage, "board", "board.toml")
        self.board = stage.board
        self.on_postgres = isinstance(stage.board, python_kit.StarletteBoard)

    async def login(self, client: httpx.AsyncClient) -> None:
        assert (await client.post("/login", json={"person": "ann"})).text == "welcome"

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return (await client.get("/whoami")).text == "ann"

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> None:
        assert (await client.post("/notes", json={"title": title, "body": text})).text == "pinned"

    def rows(self, env: Environment, title: str) -> list[tuple[int, str]]:
        found = self.board.rows(env, "SELECT title, id, body FROM notes ORDER BY id")
        return [(row[1], row[2]) for row in found if row[0] == title]

    async def upload(self, client: httpx.AsyncClient, data: bytes) -> None:
        assert (await client.post("/files/lamp.png", content=data)).status_code == 200

    async def later(self, client: httpx.AsyncClient, pipe: Path, word: str) -> None:
        assert (await client.get("/later", params={"pipe": str(pipe), "word": word})).text == "started"

    def told_later(self, env: Environment) -> str:
        return " ".join(row[0] for row in self.board.rows(env, "SELECT word FROM jobs ORDER BY id"))


class OnNode(Alike):
    """express-admin."""

    page = "/login"

    def __init__(self, stage: node_kit.Stage) -> None:
        super().__init__(stage, "admin", "admin.toml")

    async def login(self, client: httpx.AsyncClient) -> None:
        await node_kit.Admin(client).login()

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return await node_kit.Admin(client).is_logged_in()

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> None:
        await node_kit.Admin(client).add(title, text, text.encode())

    def rows(self, env: Environment, title: str) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in run(env, "SELECT id, body FROM notes WHERE title = %s ORDER BY id", title)]

    async def upload(self, client: httpx.AsyncClient, data: bytes) -> None:
        await node_kit.Admin(client).add("Picture", "it has one", data)

    async def later(self, client: httpx.AsyncClient, pipe: Path, word: str) -> None:
        await self.stage.ask(client, "later", pipe=str(pipe), word=word)

    def told_later(self, env: Environment) -> str:
        return " ".join(text for _, text in self.rows(env, "later"))


def _needs(reason: str) -> list[pytest.MarkDecorator]:
    return [needs_postgres, pytest.mark.skipif(bool(reason), reason=reason)]


STACKS = [
    pytest.param("tracker", id="rack", marks=_needs(stack_kit.missing(stack_kit.Tracker()))),
    pytest.param("wiki", id="php-fpm", marks=_needs(stack_kit.missing(stack_kit.Wiki()))),
    pytest.param("flask", id="wsgi"),
    pytest.param("starlette", id="asgi", marks=needs_postgres),
    pytest.param("admin", id="node", marks=_needs(node_kit.missing())),
]


@asynccontextmanager
async def opened(name: str, directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[Alike]:
    """The stack's server, with no environment yet."""
    async with AsyncExitStack() as stack:
        if name == "admin":
            from tests.contract.postgres_kit import dsn

            where = dsn(request.getfixturevalue("postgres"))
            yield OnNode(await stack.enter_async_context(node_kit.staged(directory, where)))
        elif name in ("flask", "starlette"):
            board = python_kit.FlaskBoard() if name == "flask" else python_kit.StarletteBoard()
            yield Small(await stack.enter_async_context(python_kit.staged(board, directory)))
        else:
            site = stack_kit.Tracker() if name == "tracker" else stack_kit.Wiki()
            yield Packaged(await stack.enter_async_context(stack_kit.staged(site, directory)))


__all__ = ["STACKS", "Alike", "opened", "picture", "said"]
