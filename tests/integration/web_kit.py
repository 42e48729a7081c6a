"""A running web resource with the notes project, environments whose stores are copies of one base, and raw readers."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx

from statefork.adapters.interfaces.gateway import HttpGateway, Limits, open_gateway
from statefork.adapters.resources.web import Options, WebResource, make
from statefork.engine.ports import Needs, Owner, Services
from statefork.journal.values import Binding, Branch, Identity
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.hand_pipe import HandPipes

PROJECT = Path(__file__).parent / "webproject"


def build_base(directory: Path, **environment: str) -> Path:
    """The notes project's base, made by the project itself in a process of its own."""
    subprocess.run(
        [sys.executable, "-m", "notes.build"],
        check=True,
        env={**os.environ, "NOTES_BASE": str(directory), "PYTHONPATH": str(PROJECT), **environment},
        timeout=120,
    )
    return directory


async def left_to_do(web: WebResource, branch: Branch) -> tuple[str, ...]:
    """What is pending once no request is: whoever has read an answer has it before its request is over."""
    pending = await web.pending(branch)
    with anyio.fail_after(20):
        while any(name.startswith("request ") for name in pending):
            pending = await web.pending(branch)
    return pending


class Place:
    """One environment in one epoch: its stores, and what a test does with it."""

    def __init__(self, world: World, identity: Identity, root: Path) -> None:
        self.world = world
        self.identity = identity
        self.root = root
        self.branch: Branch
        self.binding: Binding
        self.client: httpx.AsyncClient
        self.pipes = HandPipes(root)

    def titles(self) -> list[str]:
        """The titles in the database, read without the server."""
        with sqlite3.connect(self.root / "notes.sqlite3") as raw:
            return sorted(row[0] for row in raw.execute("SELECT title FROM notes_note"))

    def pipe(self, name: str = "go") -> str:
        """The path of a named pipe that a view waits on."""
        return str(self.pipes[name].path)

    def write_line(self, line: str = "go", *, name: str = "go") -> None:
        """Let the view go on that waits on the pipe, or soon will."""
        self.pipes[name].write_line(line)


class World:
    """The resource, its gateway and admission, and the places that were opened."""

    def __init__(self, base: Path, tmp: Path, web: WebResource, gateway: HttpGateway, keeper: Doorkeeper) -> None:
        self.base = base
        self.tmp = tmp
        self.web = web
        self.gateway = gateway
        self.keeper = keeper
        self._places = itertools.count(1)

    def needs(self, identity: Identity, root: Path) -> Needs:
        """Bindings of the stores that lie under ``root``."""
        paths = {"db": root / "notes.sqlite3", "media": root / "media", "search": root / "search"}
        bindings = {
            name: Binding(
                journal="j", resource=name, adapter="files", branch="b", identity=identity, address={"path": str(path)}
            )
            for name, path in paths.items()
        }
        return Needs(bindings=bindings)

    @asynccontextmanager
    async def place(
        self, env: str, epoch: int = 1, activation: int = 1, *, source: Path | None = None
    ) -> AsyncIterator[Place]:
        """An environment bound to a copy of ``source`` (else of the base), with a client on its base URL."""
        identity = self.keeper.add(env, epoch, activation)
        root = self.tmp / f"{next(self._places)}-{env}-{epoch}-{activation}"
        shutil.copytree(source or self.base, root, ignore=shutil.ignore_patterns("pipe*"))
        place = Place(self, identity, root)
        place.branch = await self.web.branch(await self.web.provision(), Owner(env=env, epoch=epoch))
        place.binding = await self.web.bind(place.branch, identity, self.needs(identity, root))
        base_url = str(place.binding.address["base_url"])
        with contextlib.closing(place.pipes):
            async with httpx.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as place.client:
                yield place
        await self.web.unbind(place.binding)
        if not any(name == env for name, _ in self.web.server.bound()):
            await self.web.forget(env)


@asynccontextmanager
async def open_world(
    base: Path, tmp: Path, *, limits: Limits | None = None, settings: str = "notes.settings", requests_max: int = 6
) -> AsyncIterator[World]:
    """A server with no environment yet."""
    keeper = Doorkeeper()
    async with open_gateway(keeper, limits) as gateway:
        services = Services(state=tmp / "state", journal="j", blobs=None, gateway=gateway, base_dir=PROJECT)
        options = Options(
            stack="django",
            settings=settings,
            host="notes.example",
            path=".",
            stores={"database": "db", "media": "media", "search": "search"},
            threads=6,
            requests_per_environment_max=requests_max,
        )
        web = make("notes", options, services)
        await web.start()
        try:
            yield World(base, tmp, web, gateway, keeper)
        finally:
            await web.stop()
