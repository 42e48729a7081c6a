"""Clients that are half there: they begin something and go no further, or vanish without a word.

What they hold (a lease, and with it their environment's slot; a connection of its door) is theirs for as long as a
limit of the gateway says and no longer, and who waits for the slot meanwhile gets it in order of arrival.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import psutil
import pytest
from wsproto.events import TextMessage

from statefork.adapters.interfaces.gateway import Limits
from statefork.engine.kernel import DrainPolicy, Settings
from statefork.engine.leases import Gate
from statefork.journal.events import EnvironmentActivated
from tests.integration.drain_kit import Scene, open_scene
from tests.integration.gateway_rig import Rig, open_rig
from tests.integration.gateway_streams_kit import handshake

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


LIMITS = Limits(head_s=0.4, idle_s=0.4, stall_s=0.4, keepalive_s=1)
ONE_PLACE = Settings(max_slots={"*": 1}, drain=DrainPolicy(deadline_s=5))
PLACE = """
[resources.page]
adapter = "memory"
slot = "page"
"""
BIG_BYTES = 16 << 20  # more than the sockets of both sides hold


class OnePlace(Scene):
    """Three environments and one place; ``a`` has it."""

    async def door(self) -> tuple[anyio.abc.SocketStream, str]:
        """A connection to the base URL of ``a``, and what its clients say in Host."""
        authority = str(self.kernel.bindings("a")["site"].address["base_url"]).removeprefix("http://")
        host, _, port = authority.rpartition(":")
        return await anyio.connect_tcp(host, int(port)), authority

    @property
    def gate(self) -> Gate:
        context = self.kernel._conductor.live("a").context
        assert context is not None
        return context.gate


@asynccontextmanager
async def open_one_place(base: Path, tmp: Path) -> AsyncIterator[OnePlace]:
    async with open_scene(OnePlace, base, tmp, more=PLACE, limits=LIMITS, engine=ONE_PLACE) as scene:
        for env in ("b", "c"):
            await scene.kernel.create(env, activate=False)
        yield scene


async def nothing(scene: OnePlace, stream: anyio.abc.SocketStream, host: str) -> None:
    """Connects, and says nothing."""


async def half_a_head(scene: OnePlace, stream: anyio.abc.SocketStream, host: str) -> None:
    await stream.send(f"GET /notes/ HTTP/1.1\r\nHost: {host}\r\nX-Ha".encode())


async def half_a_body(scene: OnePlace, stream: anyio.abc.SocketStream, host: str) -> None:
    head = f"POST /add/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n"
    await stream.send(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\ntitle=".encode())
    await until(lambda: bool(scene.gate.live))


async def no_eyes(scene: OnePlace, stream: anyio.abc.SocketStream, host: str) -> None:
    """Asks for much, and reads nothing."""
    media = Path(str(scene.kernel.bindings("a")["media"].address["path"]))
    (media / "big.bin").write_bytes(bytes(BIG_BYTES))
    await stream.send(f"GET /media/big.bin HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await until(lambda: bool(scene.gate.live))


async def event_stream(scene: OnePlace, stream: anyio.abc.SocketStream, host: str) -> None:
    """Listens to a stream that says nothing."""
    await stream.send(f"GET /events/?pipe={scene.pipe('events')} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await until(lambda: bool(scene.gate.carried))


HALVES = [nothing, half_a_head, half_a_body, no_eyes, event_stream]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def to_the_end(stream: anyio.abc.SocketStream) -> None:
    """Read what comes until the other side has closed."""
    with anyio.fail_after(10):
        try:
            while True:
                await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


@pytest.mark.parametrize("half", HALVES, ids=lambda half: half.__name__)
async def test_the_slot_of_who_goes_no_further_is_free_for_those_who_wait(
    notes_base: Path, tmp_path: Path, half: Callable[..., Awaitable[None]]
) -> None:
    async with open_one_place(notes_base, tmp_path) as scene:
        clients = [await scene.door() for _ in range(3)]
        try:
            for stream, host in clients:
                await half(scene, stream, host)

            async def act(env: str) -> None:
                await scene.kernel.act(env, {"type": "put", "in": "page", "key": "k", "value": env})

            with anyio.fail_after(40):
                async with anyio.create_task_group() as tasks:
                    for env in ("b", "c"):
                        tasks.start_soon(act, env)
                        await anyio.wait_all_tasks_blocked()
                scene.let_go()
                if half is not no_eyes:  # what was not read may still be there to read
                    for stream, _ in clients:
                        await to_the_end(stream)
        finally:
            for stream, _ in clients:
                await stream.aclose()
        served = [event.env for event in await scene.events(EnvironmentActivated)]
        assert served[-2:] == ["b", "c"], "in order of arrival"
        assert scene.titles("c") == ["first"]


def vanish(stream: anyio.abc.SocketStream) -> None:
    """Close our side without a word to the other, as a machine does that loses its power."""
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
    except PermissionError:
        pytest.skip("this needs CAP_NET_ADMIN, to leave a connection without a FIN")


def accepted(port: int) -> bool:
    """Whether this process still has the server's end of a connection whose other end was this port."""
    return any(one.raddr and one.raddr.port == port for one in psutil.Process().net_connections("tcp"))


async def socket_at_rest(rig: Rig, stream: anyio.abc.SocketStream) -> None:
    talk = await handshake(stream, "shop.example")
    await talk.send(TextMessage(data="before"))
    assert await talk.next() == TextMessage(data="echo before")


async def stream_at_rest(rig: Rig, stream: anyio.abc.SocketStream) -> None:
    await stream.send(b"GET http://shop.example/events HTTP/1.1\r\nHost: shop.example\r\n\r\n")
    await rig.upstream.events_in.send(b"data: before\n\n")
    while b"before" not in await stream.receive():
        pass


@pytest.mark.root
@pytest.mark.parametrize("rest", [socket_at_rest, stream_at_rest], ids=lambda rest: rest.__name__)
async def test_connections_at_rest_end_when_their_client_is_gone_without_a_word(
    rest: Callable[[Rig, anyio.abc.SocketStream], Awaitable[None]],
) -> None:
    async with open_rig(LIMITS) as rig:
        stream = await anyio.connect_tcp("127.0.0.1", rig.proxy.port)
        await rest(rig, stream)
        await rig.keeper.until_quiet()
        port = stream.extra(anyio.abc.SocketAttribute.local_port)
        assert accepted(port)
        vanish(stream)
        await stream.aclose()
        await until(lambda: not accepted(port))
