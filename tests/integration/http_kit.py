"""An engine that is served over HTTP, with stores in memory, and clients that behave badly."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx

from statefork.adapters.interfaces.http.app import Api
from statefork.adapters.interfaces.http.client import AsyncClient, Client
from statefork.adapters.interfaces.http.serving import place_of, served
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.memory import MemoryResource, MemoryWorld
from statefork.journal.events import Event
from statefork.journal.log import Recorded

CONTRACT = '[contract]\nname = "notes"\n[resources.page]\nadapter = "memory"\ninitial = { greeting = "hello" }\n'
TOKEN = "a token of this test"
PATIENCE_S = 30.0
PUT = {"type": "put", "key": "basket", "value": "tea"}
WAIT = {"type": "wait", "key": "bell"}


class Running(NamedTuple):
    """A served engine."""

    engine: Engine
    url: str

    @property
    def world(self) -> MemoryWorld:
        """What its stores hold."""
        page = self.engine.kernel.resources["page"]
        assert isinstance(page, MemoryResource)
        return page.world

    def client(self, token: str = TOKEN) -> AsyncClient:
        """A client of ours."""
        return AsyncClient(self.url, token=token)

    def blocking(self, token: str = TOKEN) -> Client:
        """The one that waits."""
        return Client(self.url, token=token)

    def http(self, **headers: str) -> httpx.AsyncClient:
        """Any client."""
        return httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}", **headers}, timeout=PATIENCE_S
        )

    def raw(self, said: bytes, *, buffer_bytes: int | None = None) -> socket.socket:
        """A connection on which this was said, and nothing is read."""
        address = urlsplit(self.url)
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.connect((address.hostname, address.port))
        client.sendall(said)
        return client


def head(method: str, path: str, *more: str) -> bytes:
    """The head of a request that bears the token."""
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def serving(folder: Path, *, contract: str = CONTRACT, slots: int | None = None) -> AsyncIterator[Running]:
    """An engine and its HTTP interface."""
    (folder / "notes.toml").write_text(contract)
    async with open_engine(folder / "notes.toml", state=folder / "state", slots=slots) as engine:
        api = Api(engine, token=TOKEN)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(api.run)
            async with served(api, place_of("0"), hurried=engine.kernel.hurried) as address:
                yield Running(engine, address.url)
            tasks.cancel_scope.cancel()


async def until(engine: Engine, kind: type[Event], after: int = 0, **fields: object) -> Recorded:
    """The first event of a kind with these values, also one that is yet to come."""
    async with engine.journal.subscribe(after=after) as feed:
        async for recorded in feed:
            event = recorded.event
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                return recorded
    raise AssertionError(f"no {kind.__name__}")
