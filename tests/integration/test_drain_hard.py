"""Drain proved the hard way, with the real kernel, gateway, server and stores.

Open at the freeze: a slow streaming response, a server thread after its response, an event stream and a WebSocket at
rest; arriving during it: a service worker's poll, a beacon, a WebSocket message. Each is counted, ended, held or
refused, by name in the journal. What was acknowledged before the publish is in the sealed generation, and nothing else
is. Each guard is taken away in turn, and then the proof must fail.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
from wsproto.events import CloseConnection, TextMessage

from statefork.adapters.interfaces.gateway import HttpGateway, messages, open_gateway
from statefork.adapters.interfaces.registry import make_resources
from statefork.adapters.resources.web import WebResource
from statefork.engine import admission, leases
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import DrainPolicy, Kernel, open_kernel
from statefork.engine.ports import Listener, Route, Services
from statefork.journal.events import (
    Event,
    GenerationPublished,
    LeaseRevoked,
    RequestRefused,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.log import Journal
from statefork.journal.store import open_state
from tests.integration.gateway_streams_kit import Socket, handshake
from tests.integration.upstream_kit import Upstream, open_upstream
from tests.integration.web_kit import PROJECT, build_base

pytestmark = pytest.mark.anyio

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
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
host = "notes.example"
grace_s = 0.2
durability = "derived"
depends_on = ["db", "media", "search"]
stores = { database = "db", media = "media", search = "search" }
"""
SITE = "http://notes.example"
SOCKET = "http://socket.example/ws"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("notes") / "base")


class Late:
    """The gateway's admission, once the kernel is there."""

    kernel: Kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Scene:
    """A running engine with one environment, and what is open in it."""

    def __init__(self, kernel: Kernel, gateway: HttpGateway, journal: Journal, upstream: Upstream, tmp: Path) -> None:
        self.kernel = kernel
        self.gateway = gateway
        self.journal = journal
        self.upstream = upstream
        self.tmp = tmp
        self.proxy: Listener
        self.client: httpx.AsyncClient

    async def events(self, kind: type[Event]) -> list[Any]:
        """Everything of one kind that the journal holds."""
        await self.journal.flush()
        return [record.event async for record in self.journal.read() if isinstance(record.event, kind)]

    def pipe(self, name: str) -> Path:
        """A named pipe that a view waits on."""
        path = self.tmp / f"pipe-{name}"
        if not path.exists():
            os.mkfifo(path)
        return path

    async def write_line(self, name: str, line: str = "go") -> None:
        """Let a view go on."""
        await anyio.to_thread.run_sync(self.pipe(name).write_text, line + "\n", abandon_on_cancel=True)

    def let_go(self) -> None:
        """End whatever still waits on a pipe, so that closing need not."""
        for name in ("slow", "events", "thread"):
            with contextlib.suppress(OSError):
                os.close(os.open(self.tmp / f"pipe-{name}", os.O_WRONLY | os.O_NONBLOCK))

    def titles(self) -> list[str]:
        """What the environment's database holds now, read raw."""
        path = self.kernel.bindings("a")["db"].address["path"]
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
            return sorted(row[0] for row in raw.execute("SELECT title FROM notes_note"))


@asynccontextmanager
async def open_scene(base: Path, tmp: Path, settings: str = "notes.settings") -> AsyncIterator[Scene]:
    text = CONTRACT.replace("PROJECT", str(PROJECT)).replace("SETTINGS", settings)
    contract = parse_contract(text, "notes.toml")
    late = Late()
    async with open_upstream() as upstream, open_state(tmp / "state", write=True) as state:
        async with open_gateway(late) as gateway:  # type: ignore[arg-type]  # answers as the kernel does
            services = Services(
                state=state.path, journal=state.journal.id, blobs=state.blobs, gateway=gateway, base_dir=base
            )
            resources = make_resources(contract, services)
            async with open_kernel(
                journal=state.journal, contract=contract, resources=resources, blobs=state.blobs
            ) as late.kernel:
                scene = Scene(late.kernel, gateway, state.journal, upstream, tmp)
                await late.kernel.create("a")
                address = late.kernel.bindings("a")["site"].address
                site = Route(
                    host="notes.example",
                    upstream_host="127.0.0.1",
                    upstream_port=int(str(address["upstream_port"])),
                    ticket_key=bytes.fromhex(str(address["ticket_key_hex"])),
                )
                identity = late.kernel.bindings("a")["site"].identity
                scene.proxy = await gateway.open_proxy(identity, (site, upstream.route("socket.example")))
                proxy = f"http://127.0.0.1:{scene.proxy.port}"
                async with httpx.AsyncClient(proxy=proxy, trust_env=False, timeout=30) as scene.client:
                    yield scene


@asynccontextmanager
async def everything_open(scene: Scene) -> AsyncIterator[tuple[Any, Any, Socket]]:
    """A slow response, a thread, an event stream and a WebSocket; each has shown that it lives."""
    client = scene.client
    slow = client.stream("GET", f"{SITE}/stream/", params={"pipe": str(scene.pipe("slow"))})
    live = client.stream("GET", f"{SITE}/events/", params={"pipe": str(scene.pipe("events"))})
    query = {"pipe": str(scene.pipe("thread")), "title": "by the thread"}
    assert (await client.get(f"{SITE}/later/", params=query)).text == "started"
    async with slow as response, live as stream, await anyio.connect_tcp("127.0.0.1", scene.proxy.port) as raw:
        lines, events = response.aiter_lines(), stream.aiter_lines()
        assert await anext(lines) == "1"
        assert [await anext(events), await anext(events)] == [": open", ""]
        socket = await handshake(raw, "socket.example")
        await socket.send(TextMessage(data="before"))
        assert await socket.next() == TextMessage(data="echo before")
        yield lines, events, socket


async def until_frozen(scene: Scene) -> None:
    """Wait until the freeze is journaled."""
    async with scene.journal.subscribe() as records:
        async for record in records:
            if isinstance(record.event, TransitionBegun) and record.event.op != "create":
                return


async def arrive_late(scene: Scene, socket: Socket) -> None:
    """A service worker's poll and a beacon are refused, with a reason; a message is held."""
    poll = await scene.client.get(f"{SITE}/notes/", headers={"Service-Worker": "script"})
    beacon = await scene.client.post(f"{SITE}/add/", data={"title": "by the beacon"})
    for answer in (poll, beacon):
        assert (answer.status_code, answer.json()["code"]) == (503, "environment_frozen")
        assert answer.headers["retry-after"]
    await socket.send(TextMessage(data="during"))


async def continuing(scene: Scene) -> None:
    """A snapshot waits for what is open, holds what is at rest, refuses what arrives."""
    async with everything_open(scene) as (lines, events, socket):
        seen_at_publish: list[str | bytes] = []
        async with anyio.create_task_group() as tasks:

            async def snapshot() -> None:
                await scene.kernel.snapshot("a", drain=DrainPolicy(deadline_s=20))
                seen_at_publish.extend(scene.upstream.messages)

            tasks.start_soon(snapshot)
            await until_frozen(scene)
            await arrive_late(scene, socket)
            await scene.write_line("slow")
            assert await anext(lines) == "1"
            await scene.write_line("thread")
        assert await socket.next() == TextMessage(data="echo during")
        assert "during" not in seen_at_publish, "a message passed between freeze and publish"
        await scene.write_line("events", "after")
        assert await anext(events) == "data: after 2"

    (drained,) = await scene.events(TransitionDrained)
    held = {entry.holder.split("?")[0]: entry.how for entry in drained.held}
    assert held.pop("site: thread mailer") == "ended"
    assert held.pop(f"GET {SITE}/stream/") == "ended"
    assert held.pop(f"event stream {SITE}/events/") == "held"
    assert held.pop(f"WebSocket {SOCKET}") == "held"
    assert held == {}
    refused = {(event.method, event.url): event for event in await scene.events(RequestRefused)}
    assert {key: event.status for key, event in refused.items()} == {
        ("GET", f"{SITE}/notes/"): 503,
        ("POST", f"{SITE}/add/"): 503,
    }
    assert scene.titles() == ["by the thread", "first"]
    await scene.kernel.restore("a", scene.kernel.world.capsule("a").moment, drain=DrainPolicy(then="revoke"))
    assert scene.titles() == ["by the thread", "first"], "the sealed generation lacks what was acknowledged before it"


async def switching(scene: Scene) -> None:
    """A reset revokes and joins what it can, fences the thread, and closes what is at rest."""
    old = scene.kernel.bindings("a")["site"].identity
    async with everything_open(scene) as (lines, events, socket):
        await scene.client.post(f"{SITE}/add/", data={"title": "abandoned"})
        await scene.kernel.reset("a", drain=DrainPolicy(deadline_s=0.1, then="revoke", join_s=5))
        with pytest.raises(httpx.HTTPError):
            await anext(lines)
        late = await scene.client.post(f"{SITE}/add/", data={"title": "by a late beacon"})
        assert (late.status_code, late.json()["code"]) == (409, "stale_generation")
        assert str(old.epoch) in late.json()["message"]
        assert str(scene.kernel.world.capsule("a").epoch) in late.json()["message"]
        await scene.proxy.close()  # the browser's adapter does so when it is unbound
        assert isinstance(await socket.next(), CloseConnection)
        with contextlib.suppress(httpx.HTTPError):
            assert [line async for line in events] == []
        await scene.write_line("thread")

    drained = (await scene.events(TransitionDrained))[-1]
    held = {entry.holder.split("?")[0]: entry.how for entry in drained.held}
    assert held[f"GET {SITE}/stream/"] == "revoked"
    assert held["site: thread mailer"] == "fenced"
    assert held[f"event stream {SITE}/events/"] == "held"
    assert held[f"WebSocket {SOCKET}"] == "held"
    assert [event.holder.split("?")[0] for event in await scene.events(LeaseRevoked)] == [f"GET {SITE}/stream/"]
    details = [event.detail.split("?")[0] for event in await scene.events(RequestRefused)]
    assert any(detail.startswith(f"WebSocket {SOCKET}") for detail in details)
    assert any(detail.startswith(f"event stream {SITE}/events/") for detail in details)
    assert len(await scene.events(GenerationPublished)) == 2
    assert scene.titles() == ["first"]


@pytest.mark.parametrize("proof", [continuing, switching])
async def test_everything_open_at_the_freeze_is_accounted_for(base: Path, tmp_path: Path, proof: Any) -> None:
    async with open_scene(base, tmp_path) as scene:
        try:
            with anyio.fail_after(60):
                await proof(scene)
        finally:
            scene.let_go()


# --- the same, with one guard away --------------------------------------------------------------------------------


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _no_names(*_: Any, **__: Any) -> tuple[str, ...]:
    return ()


async def _unleased(client: Any, asked: Any, opened: Any, kind: str, send: Any) -> None:
    await send()


@contextlib.contextmanager
def _uncarried(self: Any, name: str) -> Iterator[None]:
    yield


async def _at_once(self: Any, *, beside: int = 0) -> None:
    return None


GUARDS: dict[str, tuple[Any, str, Any, Any]] = {
    "a frozen gate grants no root": (leases.Gate, "_check_open", _nothing, continuing),
    "a drain waits for leases": (leases.Gate, "idle", _at_once, continuing),
    "a drain asks the server what still runs": (WebResource, "pending", _no_names, continuing),
    "messages take leases": (messages, "deliver", _unleased, continuing),
    "carried connections are named": (leases.Gate, "carry", _uncarried, continuing),
    "refusals are journaled": (admission, "refuse", _nothing, continuing),
    "an ended activation is stale": (admission.Admitted, "_stale", lambda self, identity: KeyError(), switching),
    "leases are revoked": (leases.Gate, "revoke_all", lambda self, reason: [], switching),
    "stragglers are named": (WebResource, "terminate", _no_names, switching),
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_proof_fails_without_the_guard(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    owner, name, replacement, proof = GUARDS[guard]
    failed = False
    async with open_scene(base, tmp_path) as scene:
        monkeypatch.setattr(owner, name, replacement)
        try:
            with anyio.fail_after(12):
                await proof(scene)
        except (Exception, ExceptionGroup):  # noqa: BLE001 - however it fails, it must
            failed = True
        finally:
            monkeypatch.undo()
            scene.let_go()
    assert failed, f"the proof passes without: {guard}"


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_proof_fails_where_threads_do_not_inherit(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_WITHOUT", "inherit:install")
    async with open_scene(base, tmp_path, settings="notes.without") as scene:
        with pytest.raises((AssertionError, ExceptionGroup, TimeoutError)), anyio.fail_after(30):
            await continuing(scene)
        scene.let_go()
