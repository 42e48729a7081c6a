"""Requests within requests: whatever a client writes, the server gets what was admitted, once, in one reading."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from statefork.adapters.interfaces.gateway import Limits, open_gateway
from statefork.engine.ports import Listener
from tests.integration.fences_kit import until_closed
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.gateway_rig import authority, open_rig
from tests.integration.test_gateway_hostile import SMUGGLED, Tap, one_ticket
from tests.integration.upstream_kit import open_script, talk_raw

pytestmark = pytest.mark.anyio

START = b"POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


class Scene:
    """Environments ``a`` and ``b`` before one server that notes every byte; their doors."""

    def __init__(self, tap: Tap, keeper: Doorkeeper, doors: tuple[Listener, Listener]) -> None:
        self.tap = tap
        self.keeper = keeper
        self.doors = doors

    async def send(self, data: bytes) -> bytes:
        """Through the door of ``a``."""
        return await talk_raw(self.doors[0], data)

    async def sibling_is_served(self) -> None:
        """And what it sends arrives as its own."""
        fine = b"GET http://shop.example/fine HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
        assert (await talk_raw(self.doors[1], fine)).startswith(b"HTTP/1.1 200")
        assert one_ticket(self.tap.requests.pop()).env == "b"

    def arrived_in_one_reading(self) -> None:
        """No line of a request's head ends otherwise than all do, or goes on in the next; one ticket each."""
        for raw in self.tap.requests:
            head, _, body = raw.partition(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            assert not any(b"\n" in line or b"\r" in line or b"\0" in line for line in lines), raw
            assert not any(line[:1] in (b" ", b"\t") for line in lines), "a folded line"
            assert sum(line.lower().startswith((b"content-length:", b"transfer-encoding:")) for line in lines) <= 1
            assert one_ticket(raw).env == "a"
            assert b"smuggled" not in head
            assert b"HTTP/1.1" not in body


@asynccontextmanager
async def open_scene() -> AsyncIterator[Scene]:
    tap, keeper = Tap(), Doorkeeper()
    limits = Limits(head_s=0.5, idle_s=0.5, stall_s=0.5)
    async with open_script(tap.talk) as route, open_gateway(keeper, limits) as gateway:
        doors = [await gateway.open_proxy(keeper.add(env), (route,)) for env in ("a", "b")]
        yield Scene(tap, keeper, (doors[0], doors[1]))


BARE = {
    "in the request line": b"POST http://shop.example/ HTTP/1.1\nHost: shop.example\r\nContent-Length: 0\r\n\r\n",
    "after a header": START + b"X: 1\nContent-Length: 0\r\n\r\n",
    "a header behind one": START + b"X: 1\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "everywhere": (START + b"Content-Length: 0\r\n\r\n").replace(b"\r\n", b"\n"),
    "at the end of the head": START + b"Content-Length: 0\r\n\n",
    "bare CR": START + b"X: 1\rContent-Length: 9\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", BARE.values(), ids=BARE)
async def test_lines_that_end_otherwise_end_as_all_do_or_are_refused(data: bytes) -> None:
    async with open_scene() as scene:
        answer = await scene.send(data + SMUGGLED.replace(b"smuggled", b"second"))
        if answer.startswith(b"HTTP/1.1 200"):  # read as h11 reads it, and written anew
            assert len(scene.tap.requests) == 2, "two requests were sent, one after the other"
        else:
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1
            assert scene.tap.requests == []
            assert scene.keeper.refusals[0][1] == "bad_request"
        scene.arrived_in_one_reading()
        await scene.sibling_is_served()


FOLDED = {
    "a value": START + b"X: 1\r\n 2\r\nContent-Length: 0\r\n\r\n",
    "a length": START + b"Content-Length:\r\n 0\r\n\r\n",
    "an encoding": START + b"Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n",
    "an encoding behind a value": START + b"X: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "the first line": b"POST http://shop.example/ HTTP/1.1\r\n X: 1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n",
    "a host": b"POST http://shop.example/ HTTP/1.1\r\nHost:\r\n shop.example\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", FOLDED.values(), ids=FOLDED)
async def test_folded_lines_arrive_unfolded_or_not_at_all(data: bytes) -> None:
    async with open_scene() as scene:
        answer = await scene.send(data)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 501")), answer
        assert len(scene.tap.requests) == answer.startswith(b"HTTP/1.1 200")
        scene.arrived_in_one_reading()
        await scene.sibling_is_served()


CHUNKS = {
    "hex with a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "less than none": b"-3\r\nabc\r\n0\r\n\r\n",
    "a space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "an underscore": b"0_3\r\nabc\r\n0\r\n\r\n",
    "too many digits": b"0" * 40 + b"3\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "more than was said": b"3\r\nabcde\r\n0\r\n\r\n",
    "NUL": b"3\0\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
async def test_chunks_of_odd_sizes_are_cut(body: bytes) -> None:
    async with open_scene() as scene:
        answer = await scene.send(CHUNKED + body + SMUGGLED)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), answer
        assert answer.count(b"HTTP/1.1") == 1
        assert scene.tap.requests == [], "no request came to its end"
        await scene.keeper.until_quiet()
        assert scene.keeper.refusals
        await scene.sibling_is_served()


async def test_a_chunk_that_can_not_end_is_cut() -> None:
    """What follows is its beginning, and no request; the client has the connection for as long as a stall may last."""
    async with open_scene() as scene:
        assert await scene.send(CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n" + SMUGGLED) == b""
        await scene.keeper.until_quiet()
        assert scene.tap.requests == []
        assert len(scene.keeper.granted) == 1
        ((method, _, body, status),) = scene.keeper.inputs
        assert (method, status) == ("POST", 0), "its beginning is on record, and that nothing answered it"
        assert body.startswith(b"abc")
        await scene.sibling_is_served()


async def test_what_is_said_beside_chunks_does_not_pass() -> None:
    """Extensions and trailers, in which a second length or a ticket may stand."""
    async with open_scene() as scene:
        beside = b"3;a=b\r\nabc\r\n0\r\nContent-Length: 40\r\nStatefork-Ticket: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await scene.send(CHUNKED + beside)
        assert answer.startswith(b"HTTP/1.1 200")
        (raw,) = scene.tap.requests
        assert raw.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        scene.arrived_in_one_reading()
        await scene.sibling_is_served()


async def test_a_second_request_behind_the_first_is_admitted_by_itself() -> None:
    """What follows a body is a request of the same door: another lease, another connection, another ticket."""
    async with open_scene() as scene:
        answer = await scene.send(START + b"Content-Length: 0\r\n\r\n" + SMUGGLED.replace(b"smuggled", b"second"))
        assert answer.count(b"HTTP/1.1 200") == 2
        assert [request.url for request in scene.keeper.granted] == [
            "http://shop.example/",
            "http://shop.example/second",
        ]
        assert len(scene.tap.requests) == 2
        scene.arrived_in_one_reading()


async def test_a_server_can_not_smuggle_an_answer_either() -> None:
    """What comes behind an answer is thrown away with its connection, and never given to who asks next."""

    async def twice(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + b"HTTP/1.1 200 OK\r\nX: smuggled\r\n\r\n")

    keeper = Doorkeeper()
    async with open_script(twice) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), (route,))
        ask = b"GET http://shop.example/ HTTP/1.1\r\nHost: x\r\n"
        answer = await talk_raw(door, ask + b"\r\n" + ask + b"Connection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1") == 2
        assert b"smuggled" not in answer


async def test_an_upgrade_to_anything_else_is_no_tunnel() -> None:
    """Nor is one to HTTP/2 in the clear, behind which a server might read what it likes."""
    async with open_scene() as scene:
        for protocol in (b"h2c", b"TLS/1.0", b"websocket, h2c"):
            head = START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\n"
            await scene.send(head + b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 0\r\n\r\n")
        for raw in scene.tap.requests:
            assert not re.search(rb"(?im)^(upgrade|http2-settings|connection)", raw), raw
        scene.arrived_in_one_reading()
        await scene.sibling_is_served()


async def test_an_event_without_an_end_is_cut() -> None:
    async with open_rig(Limits(event_bytes_max=10_000)) as rig:
        async with await anyio.connect_tcp(rig.site.host, rig.site.port) as stream:
            await stream.send(f"GET /events HTTP/1.1\r\nHost: {authority(rig.site)}\r\n\r\n".encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            for _ in range(4):
                await rig.upstream.events_in.send(b"data: " + b"x" * 5_000)
            assert len(await until_closed(stream)) < 10_000, "nothing of it came through"
        await rig.keeper.until_quiet()
        assert (await rig.script.get("/")).status_code == 200
