"""Connections that outlive their request: a lease per message, held at the boundary, closed by a switch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, RejectConnection, TextMessage
from wsproto.events import Request as Handshake

from statefork.adapters.interfaces.gateway import Limits
from statefork.engine.tickets import verify
from tests.integration.gateway_rig import Rig, authority, open_rig
from tests.integration.gateway_streams_kit import Socket, handshake
from tests.integration.upstream_kit import KEY

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_socket(rig: Rig, how: str) -> AsyncIterator[Socket]:
    """A WebSocket to the application: as Chromium does it (CONNECT, then the handshake), or on the base URL."""
    door = rig.proxy if how == "tunnel" else rig.site
    async with await anyio.connect_tcp(door.host, door.port) as stream:
        host = "shop.example" if how == "tunnel" else authority(rig.site)
        yield await handshake(stream, host, tunnel=how == "tunnel")


@pytest.mark.parametrize("how", ["tunnel", "site"])
async def test_a_websocket_passes_with_a_lease_per_message(how: str) -> None:
    async with open_rig() as rig:
        async with open_socket(rig, how) as socket:
            await socket.send(TextMessage(data="hello"))
            assert await socket.next() == TextMessage(data="echo hello")
            await socket.send(TextMessage(data="in ", message_finished=False))
            await socket.send(TextMessage(data="parts"))
            assert await socket.next() == TextMessage(data="echo in parts")
            await socket.send(BytesMessage(data=b"\x00" * 200_000))
            assert await socket.next() == BytesMessage(data=b"echo " + b"\x00" * 200_000)
            await socket.send(Ping(payload=b"are you there"))
            assert await socket.next() == Pong(payload=b"are you there")
            await rig.keeper.until_quiet()
            kinds = [request.kind for request in rig.keeper.granted]
            assert kinds == ["request", *["websocket-message"] * 6]
            assert {request.url for request in rig.keeper.granted} == {"http://shop.example/ws"}
            ticket = dict(rig.upstream.sockets[0].headers)["statefork-ticket"]
            assert verify(KEY, ticket) == rig.keeper.envs["a"].identity
            await socket.send(CloseConnection(1000, "bye"))
            assert isinstance(await socket.next(), CloseConnection)
        with anyio.fail_after(10):
            await rig.upstream.closed.wait()


async def test_messages_are_held_while_frozen_and_go_on_after_a_continuing_transition() -> None:
    async with open_rig() as rig, open_socket(rig, "tunnel") as socket:
        env = rig.keeper.envs["a"]
        await socket.send(TextMessage(data="before"))
        assert await socket.next() == TextMessage(data="echo before")
        env.change(frozen=True)
        await socket.send(TextMessage(data="inward"))
        await rig.upstream.sockets[0].send_text("outward")
        await anyio.wait_all_tasks_blocked()
        assert rig.upstream.messages == ["before"]
        env.change(frozen=False)
        got = {(await socket.next()).data, (await socket.next()).data}  # type: ignore[attr-defined]  # both are messages
        assert got == {"outward", "echo inward"}
        assert rig.upstream.messages == ["before", "inward"]
        assert not rig.keeper.refusals


async def test_a_switch_closes_what_is_held_and_what_is_at_rest_each_with_its_name() -> None:
    async with open_rig() as rig, open_socket(rig, "site") as held, open_socket(rig, "site") as idle:
        old = rig.keeper.envs["a"].identity
        rig.keeper.envs["a"].change(frozen=True)
        await held.send(TextMessage(data="late"))
        await anyio.wait_all_tasks_blocked()
        before = rig.keeper.envs["a"]
        rig.keeper.add("a", epoch=2, activation=2)
        before.change(frozen=False)
        closed = await held.next()
        assert isinstance(closed, CloseConnection)
        assert closed.code == 1001
        await rig.site.end(old)
        assert isinstance(await idle.next(), CloseConnection)
        assert rig.upstream.messages == []
        told = [code for _, code, _, url in rig.keeper.refusals if url == "http://shop.example/ws"]
        assert set(told) == {"stale_generation"}
        assert len(told) >= 2, "the held message, and each connection that was ended"


async def test_limits_of_messages_are_named_to_the_client() -> None:
    async with open_rig(Limits(message_bytes_max=1000)) as rig, open_socket(rig, "tunnel") as socket:
        await socket.send(BytesMessage(data=b"x" * 2000))
        closed = await socket.next()
        assert isinstance(closed, CloseConnection)
        assert "message_bytes_max is 1000" in str(closed.reason)
        await rig.keeper.until_quiet()


async def test_a_refused_handshake_is_an_ordinary_response() -> None:
    async with open_rig() as rig:
        rig.keeper.envs["a"].change(frozen=True)
        async with await anyio.connect_tcp(rig.site.host, rig.site.port) as stream:
            socket = Socket(stream)
            await socket.send(Handshake(host=authority(rig.site), target="/ws"))
            answer = await socket.next()
            assert isinstance(answer, RejectConnection)
            assert answer.status_code == 503


async def test_tunnels_lead_nowhere_else() -> None:
    async with open_rig() as rig:
        for authority, status in ((b"elsewhere.example:80", b"421"), (b"shop.example:443", b"421")):
            async with await anyio.connect_tcp("127.0.0.1", rig.proxy.port) as stream:
                await stream.send(b"CONNECT " + authority + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 " + status)
        async with await anyio.connect_tcp("127.0.0.1", rig.proxy.port) as stream:
            await stream.send(b"CONNECT shop.example:80 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            await stream.send(b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 421")
        async with await anyio.connect_tcp(rig.site.host, rig.site.port) as stream:
            await stream.send(b"CONNECT shop.example:80 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 400")


async def test_events_pass_whole_and_are_held_while_frozen() -> None:
    async with open_rig() as rig:
        env = rig.keeper.envs["a"]
        async with rig.script.stream("GET", "/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            await rig.keeper.until_quiet()
            lines = response.aiter_lines()
            await rig.upstream.events_in.send(b"data: one\n\nda")
            assert [await anext(lines), await anext(lines)] == ["data: one", ""]
            await rig.upstream.events_in.send(b"ta: two\r\n\r\n")
            assert [await anext(lines), await anext(lines)] == ["data: two", ""]
            await rig.keeper.until_quiet()
            env.change(frozen=True)
            await rig.upstream.events_in.send(b"data: three\n\n")
            await anyio.wait_all_tasks_blocked()
            assert len(rig.keeper.granted) == 3
            env.change(frozen=False)
            assert [await anext(lines), await anext(lines)] == ["data: three", ""]
            rig.upstream.events_in.close()
            assert [line async for line in lines] == []
        kinds = [request.kind for request in rig.keeper.granted]
        assert kinds == ["request", *["event-stream-message"] * 4]


async def test_an_event_stream_at_rest_is_ended_with_its_epoch_and_by_its_client() -> None:
    async with open_rig() as rig:
        identity = rig.keeper.envs["a"].identity
        received = b""
        async with await anyio.connect_tcp(rig.site.host, rig.site.port) as stream:
            await stream.send(f"GET /events HTTP/1.1\r\nHost: {authority(rig.site)}\r\n\r\n".encode())
            received += await stream.receive()
            await rig.keeper.until_quiet()
            await rig.site.end(identity)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert received.startswith(b"HTTP/1.1 200")
        assert rig.keeper.refusals == [(409, "stale_generation", "GET", "http://shop.example/events")]
        async with rig.script.stream("GET", "/events"):
            await rig.keeper.until_quiet()
        with anyio.fail_after(10):
            await rig.site.close()
