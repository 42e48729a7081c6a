"""A running engine with one environment of the notes project, for the proofs of the drain, and what replaces guards.

The site is Django on the shared server. Beside it there is a host with a WebSocket, which every proxy door leads to.
"""

from __future__ import annotations

import contextlib
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from statefork.adapters.interfaces.assembly import LateAdmission
from statefork.adapters.interfaces.gateway import HttpGateway, Limits, open_gateway
from statefork.adapters.interfaces.registry import make_resources
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import Kernel, Settings, open_kernel
from statefork.engine.ports import Listener, Route, Services
from statefork.journal.events import Event, TransitionBegun
from statefork.journal.log import Journal
from statefork.journal.store import open_state
from statefork.journal.values import Branch, Identity
from tests.integration.hand_pipe import HandPipes
from tests.integration.postgres_kit import session
from tests.integration.upstream_kit import Upstream, open_upstream
from tests.integration.web_kit import PROJECT

CONTRACT = """
[contract]
name = "notes"
[resources.db]
DATABASE
durability = "authoritative"
[resources.media]
adapter = "files"
base = "media"
durability = "authoritative"
[resources.search]
adapter = "files"
base = "search"
durability = "authoritative"
[resources.site]
adapter = "web"
stack = "django"
settings = "SETTINGS"
path = "PROJECT"
host = "HOST"
grace_s = 0.2
durability = "derived"
depends_on = ["db", "media", "search"]
stores = { database = "db", media = "media", search = "search" }
"""
TITLES = "SELECT title FROM notes_note"
SQLITE = '''adapter = "sqlite"
base = "notes.sqlite3"'''
POSTGRES = """adapter = "postgres"
base = "notes.sql"
dsn_variable = "NOTES_SERVER"
pool = 2"""


class Doors:
    """The gateway, with a WebSocket's host behind every proxy door: no adapter's server speaks WebSocket."""

    def __init__(self, gateway: HttpGateway, socket: Route) -> None:
        self._gateway = gateway
        self._socket = socket

    async def open_proxy(
        self, identity: Identity, routes: tuple[Route, ...], reserved: socket.socket | None = None
    ) -> Listener:
        return await self._gateway.open_proxy(identity, (*routes, self._socket), reserved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gateway, name)


class Stamped(list[str | bytes]):
    """Messages that the WebSocket's server got, each with the generation that was published by then."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.generations: dict[str | bytes, int] = {}
        self._scene = scene

    def append(self, message: str | bytes) -> None:
        super().append(message)
        self.generations[message] = self._scene.kernel.world.capsule("a").generation


class Scene:
    """What runs, and ways to see it that do not ask it."""

    host = "notes.example"
    socket_host = "socket.example"

    def __init__(self, kernel: Kernel, gateway: Doors, journal: Journal, upstream: Upstream, tmp: Path) -> None:
        self.kernel = kernel
        self.gateway = gateway
        self.journal = journal
        self.upstream = upstream
        self.tmp = tmp
        self.pipes = HandPipes(tmp)
        self.messages = upstream.messages = Stamped(self)

    async def events(self, kind: type[Event]) -> list[Any]:
        """Everything of one kind that the journal holds."""
        await self.journal.flush()
        return [record.event async for record in self.journal.read() if isinstance(record.event, kind)]

    async def until_frozen(self) -> int:
        """Wait until the freeze is journaled; its position there."""
        async with self.journal.subscribe() as records:
            async for record in records:
                if isinstance(record.event, TransitionBegun) and record.event.op != "create":
                    return record.position
        raise AssertionError("the journal was closed before a freeze")

    def server_asked(self) -> anyio.Event:
        """Set when a drain, whose leases have ended, has heard from the server what still runs."""
        site: Any = self.kernel.resources["site"]
        pending, asked = site.pending, anyio.Event()

        async def ask(branch: Branch) -> Any:
            names = await pending(branch)
            asked.set()
            return names

        site.pending = ask
        return asked

    def pipe(self, name: str) -> str:
        """The path of a named pipe that a view waits on."""
        return str(self.pipes[name].path)

    def write_line(self, name: str, line: str = "go") -> None:
        """Let the view go on that waits on the pipe, or soon will."""
        self.pipes[name].write_line(line)

    def let_go(self) -> None:
        """End whatever still waits on a pipe, so that closing need not."""
        self.pipes.close()

    def server_log(self) -> str:
        """What the site's server wrote, with the tracebacks of what it answered 500."""
        return (self.tmp / "state" / "logs" / "site.log").read_text(errors="replace")

    def titles(self, env: str = "a") -> list[str]:
        """What the environment's database holds now, read raw."""
        address = self.kernel.bindings(env)["db"].address
        if "path" not in address:
            with session(address) as there:
                return sorted(row[0] for row in there.execute(TITLES))
        with contextlib.closing(sqlite3.connect(f"file:{address['path']}?mode=ro", uri=True)) as raw:
            return sorted(row[0] for row in raw.execute(TITLES))

    def media(self, env: str = "a") -> dict[str, str]:
        """What the environment's files hold now, read raw."""
        folder = Path(str(self.kernel.bindings(env)["media"].address["path"]))
        return {path.name: path.read_text() for path in folder.iterdir()}


S = TypeVar("S", bound=Scene)


@asynccontextmanager
async def open_scene(
    scene: type[S],
    base: Path,
    tmp: Path,
    *,
    settings: str = "notes.settings",
    more: str = "",
    limits: Limits | None = None,
    engine: Settings | None = None,
) -> AsyncIterator[S]:
    """An engine with environment ``a`` over whichever database the base is for; ``more`` is added to the contract."""
    database = POSTGRES if (base / "notes.sql").exists() else SQLITE
    words = {"DATABASE": database, "PROJECT": str(PROJECT), "SETTINGS": settings, "HOST": scene.host}
    text = CONTRACT + more
    for word, value in words.items():
        text = text.replace(word, value)
    contract = parse_contract(text, "notes.toml")
    late = LateAdmission()
    async with open_upstream() as upstream, open_state(tmp / "state", write=True) as state:
        async with open_gateway(late, limits) as gateway:
            doors = Doors(gateway, upstream.route(scene.socket_host))
            services = Services(
                state=state.path, journal=state.journal.id, blobs=state.blobs, gateway=doors, base_dir=base
            )
            resources = make_resources(contract, services)
            async with open_kernel(
                journal=state.journal,
                contract=contract,
                resources=resources,
                blobs=state.blobs,
                settings=engine or Settings(),
            ) as late.kernel:
                await late.kernel.create("a")
                yield scene(late.kernel, doors, state.journal, upstream, tmp)


def check_held(held: tuple[Any, ...], expected: dict[str, str], *, others: tuple[str, ...] = ("ended",)) -> None:
    """What a drain found open, and how it ended; addresses are named without their queries.

    Whatever else was under way (a poll, the server's side of a request that is answered or cut) ended in one of the
    ways in ``others``: it is there or not, as it happens.
    """
    found = {entry.holder.split("?")[0]: entry.how for entry in held}
    named = {name: found.pop(name, "not named") for name in expected}
    assert named == expected, f"{named}, and {found}"
    assert set(found.values()) <= set(others), found


# --- what stands in a guard's place, when it is taken away ---------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """Neither does nor says anything."""


async def nothing_at_once(*_: Any, **__: Any) -> None:
    """The same, awaited."""


async def no_names(*_: Any, **__: Any) -> tuple[str, ...]:
    """Knows of nothing that runs."""
    return ()


async def unleased(client: Any, asked: Any, opened: Any, kind: str, send: Any) -> None:
    """A message without a lease."""
    await send()


@contextlib.contextmanager
def uncarried(self: Any, name: str) -> Iterator[None]:
    """A connection that nobody counts."""
    yield


async def fails_without(
    scene: Any, guard: tuple[Any, str, Any, Any], patch: pytest.MonkeyPatch, within_s: float
) -> bool:
    """Whether a proof fails, in whatever way, when its guard (owner, name) is replaced."""
    owner, name, replacement, proof = guard
    patch.setattr(owner, name, replacement)
    try:
        with anyio.fail_after(within_s):
            await proof(scene)
    except (Exception, ExceptionGroup):  # noqa: BLE001 - however it fails, it must
        return True
    finally:
        patch.undo()
        scene.let_go()
    return False
