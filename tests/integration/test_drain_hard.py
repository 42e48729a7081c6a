"""Drain proved the hard way, with the real kernel, gateway, server and stores.

Open at the freeze: a slow streaming response, a server thread after its response, an event stream and a WebSocket at
rest; arriving during it: a service worker's poll, a beacon, a WebSocket message. Each is counted, ended, held or
refused, by name in the journal. What was acknowledged before the publish is in the sealed generation, and nothing else
is. Each guard is taken away in turn, and then the proof must fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from wsproto.events import CloseConnection, TextMessage

from statefork.adapters.interfaces.gateway import messages
from statefork.adapters.resources.browser.options import routes_of
from statefork.adapters.resources.web import WebResource
from statefork.engine import admission, leases
from statefork.engine.kernel import DrainPolicy
from statefork.engine.ports import Listener, Needs
from statefork.journal.events import GenerationPublished, LeaseRevoked, RequestRefused, TransitionDrained
from tests.integration.drain_kit import (
    Scene,
    check_held,
    fails_without,
    no_names,
    nothing,
    nothing_at_once,
    open_scene,
    uncarried,
    unleased,
)
from tests.integration.gateway_streams_kit import Socket, handshake
from tests.integration.web_kit import build_base

pytestmark = pytest.mark.anyio

SITE = "http://notes.example"
SOCKET = "http://socket.example/ws"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("notes") / "base")


class ByHand(Scene):
    """A scene with an HTTP client behind a proxy door of the environment."""

    proxy: Listener
    client: httpx.AsyncClient


@asynccontextmanager
async def open_by_hand(base: Path, tmp: Path, settings: str = "notes.settings") -> AsyncIterator[ByHand]:
    async with open_scene(ByHand, base, tmp, settings=settings) as scene:
        bindings = scene.kernel.bindings("a")
        scene.proxy = await scene.gateway.open_proxy(bindings["site"].identity, routes_of(Needs(bindings=bindings)))
        address = f"http://127.0.0.1:{scene.proxy.port}"
        async with httpx.AsyncClient(proxy=address, trust_env=False, timeout=30) as scene.client:
            yield scene


@asynccontextmanager
async def everything_open(scene: ByHand) -> AsyncIterator[tuple[Any, Any, Socket]]:
    """A slow response, a thread, an event stream and a WebSocket; each has shown that it lives."""
    client = scene.client
    slow = client.stream("GET", f"{SITE}/stream/", params={"pipe": scene.pipe("slow")})
    live = client.stream("GET", f"{SITE}/events/", params={"pipe": scene.pipe("events")})
    query = {"pipe": scene.pipe("thread"), "title": "by the thread"}
    assert (await client.get(f"{SITE}/later/", params=query)).text == "started"
    async with slow as response, live as stream, await anyio.connect_tcp("127.0.0.1", scene.proxy.port) as raw:
        lines, events = response.aiter_lines(), stream.aiter_lines()
        assert await anext(lines) == "1"
        assert [await anext(events), await anext(events)] == [": open", ""]
        socket = await handshake(raw, "socket.example")
        await socket.send(TextMessage(data="before"))
        assert await socket.next() == TextMessage(data="echo before")
        yield lines, events, socket


async def arrive_late(scene: ByHand, socket: Socket) -> None:
    """A service worker's poll and a beacon are refused, with a reason; a message is held."""
    poll = await scene.client.get(f"{SITE}/notes/", headers={"Service-Worker": "script"})
    beacon = await scene.client.post(f"{SITE}/add/", data={"title": "by the beacon"})
    for answer in (poll, beacon):
        assert (answer.status_code, answer.json()["code"]) == (503, "environment_frozen")
        assert answer.headers["retry-after"]
    await socket.send(TextMessage(data="during"))


async def continuing(scene: ByHand) -> None:
    """A snapshot waits for what is open, holds what is at rest, refuses what arrives."""
    async with everything_open(scene) as (lines, events, socket):
        asked = scene.server_asked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(scene.kernel.snapshot, "a", drain=DrainPolicy(deadline_s=20)))
            await scene.until_frozen()
            await arrive_late(scene, socket)
            scene.write_line("slow")
            assert await anext(lines) == "1"
            await asked.wait()
            scene.write_line("thread")
        assert await socket.next() == TextMessage(data="echo during")
        assert scene.messages.generations == {"before": 1, "during": 2}, "a message passed between freeze and publish"
        scene.write_line("events", "after")
        assert await anext(events) == "data: after 2"

    (drained,) = await scene.events(TransitionDrained)
    expected = {
        "site: thread mailer": "ended",
        f"GET {SITE}/stream/": "ended",
        f"event stream {SITE}/events/": "held",
        f"WebSocket {SOCKET}": "held",
    }
    check_held(drained.held, expected)
    refused = {(event.method, event.url): event for event in await scene.events(RequestRefused)}
    assert {key: event.status for key, event in refused.items()} == {
        ("GET", f"{SITE}/notes/"): 503,
        ("POST", f"{SITE}/add/"): 503,
    }
    assert scene.titles() == ["by the thread", "first"]
    await scene.kernel.restore("a", scene.kernel.world.capsule("a").moment, drain=DrainPolicy(then="revoke"))
    assert scene.titles() == ["by the thread", "first"], "the sealed generation lacks what was acknowledged before it"


async def switching(scene: ByHand) -> None:
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
        scene.write_line("thread")

    drained = (await scene.events(TransitionDrained))[-1]
    expected = {
        "site: thread mailer": "fenced",
        f"GET {SITE}/stream/": "revoked",
        f"event stream {SITE}/events/": "held",
        f"WebSocket {SOCKET}": "held",
    }
    check_held(drained.held, expected, others=("ended", "revoked", "fenced"))
    assert [event.holder.split("?")[0] for event in await scene.events(LeaseRevoked)] == [f"GET {SITE}/stream/"]
    details = [event.detail.split("?")[0] for event in await scene.events(RequestRefused)]
    assert any(detail.startswith(f"WebSocket {SOCKET}") for detail in details)
    assert any(detail.startswith(f"event stream {SITE}/events/") for detail in details)
    assert len(await scene.events(GenerationPublished)) == 2
    assert scene.titles() == ["first"]


@pytest.mark.parametrize("proof", [continuing, switching])
async def test_everything_open_at_the_freeze_is_accounted_for(base: Path, tmp_path: Path, proof: Any) -> None:
    async with open_by_hand(base, tmp_path) as scene:
        try:
            with anyio.fail_after(60):
                await proof(scene)
        finally:
            scene.let_go()


# --- the same, with one guard away --------------------------------------------------------------------------------


GUARDS: dict[str, tuple[Any, str, Any, Any]] = {
    "a frozen gate grants no root": (leases.Gate, "_check_open", nothing, continuing),
    "a drain waits for leases": (leases.Gate, "idle", nothing_at_once, continuing),
    "a drain asks the server what still runs": (WebResource, "pending", no_names, continuing),
    "messages take leases": (messages, "deliver", unleased, continuing),
    "carried connections are named": (leases.Gate, "carry", uncarried, continuing),
    "refusals are journaled": (admission, "refuse", nothing, continuing),
    "an ended activation is stale": (admission.Admitted, "_stale", lambda self, identity: KeyError(), switching),
    "leases are revoked": (leases.Gate, "revoke_all", lambda self, reason: [], switching),
    "stragglers are named": (WebResource, "terminate", no_names, switching),
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_proof_fails_without_the_guard(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    async with open_by_hand(base, tmp_path) as scene:
        failed = await fails_without(scene, GUARDS[guard], monkeypatch, 12)
    assert failed, f"the proof passes without: {guard}"


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_proof_fails_where_threads_do_not_inherit(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_WITHOUT", "inherit:install")
    async with open_by_hand(base, tmp_path, settings="notes.without") as scene:
        with pytest.raises((AssertionError, ExceptionGroup, TimeoutError)), anyio.fail_after(30):
            await continuing(scene)
        scene.let_go()
