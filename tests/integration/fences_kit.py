"""Two environments behind real doors, ways to try what must not be, and places at which nothing may arrive."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx

from statefork.adapters.interfaces.gateway import Limits
from statefork.adapters.resources.browser.options import routes_of
from statefork.engine.ports import Listener, Needs
from statefork.journal.events import RequestRefused
from tests.integration.drain_kit import Scene, open_scene
from tests.integration.upstream_kit import talk_raw

SITE = "http://notes.example"
CUT_S = 30.0  # within which whoever is refused is told, and whoever is cut is cut


class Forbidden:
    """A port of this machine at which nobody may arrive."""

    def __init__(self, family: socket.AddressFamily, host: str) -> None:
        self._listening = socket.create_server((host, 0), family=family)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])

    def visited(self) -> bool:
        """Whether anybody has connected. A connection is in the queue before who made it goes on."""
        try:
            self._listening.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._listening.close()


@contextlib.contextmanager
def forbidden(host: str = "127.0.0.1") -> Iterator[Forbidden]:
    """For as long as the body runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = Forbidden(family, host)
    try:
        yield place
    finally:
        place.close()


class Pair(Scene):
    """Environments ``a``, who tries, and ``b``; each has a door like the one that its browser has."""

    doors: dict[str, Listener]

    async def open_door(self, env: str) -> Listener:
        """A proxy door for the environment's present activation."""
        bindings = self.kernel.bindings(env)
        routes = routes_of(Needs(bindings=bindings))
        self.doors[env] = await self.gateway.open_proxy(bindings["site"].identity, routes)
        return self.doors[env]

    def base_url(self, env: str) -> str:
        return str(self.kernel.bindings(env)["site"].address["base_url"])

    def site_of(self, env: str) -> tuple[str, int]:
        """Host and port of its private base URL."""
        host, _, port = self.base_url(env).removeprefix("http://").partition(":")
        return host, int(port)

    async def get(self, env: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        """As a script does, at the private base URL."""
        async with httpx.AsyncClient(base_url=self.base_url(env), trust_env=False, timeout=CUT_S) as client:
            return await client.get(path, headers=headers)

    async def refusals(self) -> list[RequestRefused]:
        """What the journal has of requests that were turned away, all of ``a``."""
        found = await self.events(RequestRefused)
        assert {event.env for event in found} <= {"a"}, "the sibling had to do with it"
        return found

    async def sibling_goes_on(self) -> None:
        """Reads, writes and is published as if nothing were tried."""
        told = (await self.get("b", "/notes/")).json()["titles"]
        assert told == self.titles("b")
        assert all(title == "first" or title.startswith("of b") for title in told)
        async with httpx.AsyncClient(base_url=self.base_url("b"), trust_env=False, timeout=CUT_S) as client:
            assert (await client.post("/add/", data={"title": f"of b {len(told)}"})).status_code == 200
        await self.kernel.snapshot("b")

    async def ask(self, request: bytes) -> bytes:
        """Bytes through the door of ``a``, and all that comes back."""
        return await talk_raw(self.doors["a"], request, within_s=CUT_S)


@asynccontextmanager
async def open_fences(base: Path, tmp: Path, limits: Limits | None = None) -> AsyncIterator[Pair]:
    """Environments ``a`` and ``b`` of the notes project, with their doors."""
    async with open_scene(Pair, base, tmp, limits=limits) as scene:
        scene.doors = {}
        await scene.kernel.create("b")
        for env in ("a", "b"):
            await scene.open_door(env)
        yield scene


async def until_closed(stream: anyio.abc.SocketStream) -> bytes:
    """What still comes, until the other side has closed."""
    got = b""
    with anyio.fail_after(CUT_S):
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                got += await stream.receive()
    return got
