"""The gateway's plain HTTP: what passes, with whose ticket, and what is refused with which status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator

import anyio
import anyio.abc
import httpx
import pytest

from statefork.adapters.interfaces.gateway import Limits, open_gateway
from statefork.engine.ports import Route
from statefork.engine.tickets import verify
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.gateway_rig import authority, open_rig
from tests.integration.upstream_kit import KEY, open_script, talk_raw

pytestmark = pytest.mark.anyio


async def test_a_request_through_the_proxy_gets_the_tickets_of_its_door() -> None:
    async with open_rig() as rig:
        answer = (await rig.browser.get("http://shop.example/a%20b?q=1&q=2")).json()
        headers = dict(answer["headers"])
        assert answer["target"] == "/a%20b?q=1&q=2"
        assert headers["host"] == "shop.example"
        assert verify(KEY, headers["statefork-ticket"]) == rig.proxy.identity
        assert "proxy-connection" not in headers
        assert [request.kind for request in rig.keeper.granted] == ["request"]
        assert rig.keeper.granted[0].url == "http://shop.example/a%20b?q=1&q=2"
        await rig.keeper.until_quiet()


async def test_the_base_url_speaks_for_the_canonical_host() -> None:
    async with open_rig() as rig:
        base = rig.site.base_url
        sent = {"Origin": base, "Referer": f"{base}/from?x=1"}
        headers = dict((await rig.script.get("/p", headers=sent)).json()["headers"])
        assert headers["host"] == "shop.example"
        assert headers["origin"] == "http://shop.example"
        assert headers["referer"] == "http://shop.example/from?x=1"
        redirect = await rig.script.get("/redirect")
        assert redirect.headers["location"] == f"{base}/next?a=1"
        cookies = redirect.headers.get_list("set-cookie")
        assert any(c.startswith("mine=1") and "omain" not in c for c in cookies)
        assert any("elsewhere" in c for c in cookies)
        rebound = await rig.script.get("/p", headers={"Host": "evil.example"})
        assert (rebound.status_code, rebound.json()["code"]) == (421, "unknown_host")


async def test_bodies_pass_in_both_directions_and_keep_the_connection() -> None:
    async with open_rig() as rig:
        body = bytes(range(256)) * 4096
        sized = (await rig.browser.post("http://shop.example/x", content=body)).json()
        assert sized["sha256"] == hashlib.sha256(body).hexdigest()

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 50_000):
                yield body[start : start + 50_000]

        chunked = (await rig.browser.put("http://shop.example/x", content=parts())).json()
        assert chunked["sha256"] == sized["sha256"]
        assert dict(chunked["headers"])["transfer-encoding"] == "chunked"
        head = await rig.browser.head("http://shop.example/x")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        first = b"GET http://shop.example/1 HTTP/1.1\r\nHost: shop.example\r\n\r\n"
        last = b"GET http://shop.example/2 HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
        both = await talk_raw(rig.proxy, first + last)
        assert both.count(b"HTTP/1.1 200") == 2, "pipelined requests are answered in order"
        assert both.index(b'"/1?"') < both.index(b'"/2?"')


async def test_refusals_have_their_status_a_reason_and_an_entry_in_the_journal() -> None:
    async with open_rig() as rig:
        env = rig.keeper.envs["a"]
        unknown = await rig.browser.get("http://elsewhere.example/")
        assert (unknown.status_code, unknown.json()["code"]) == (421, "unknown_host")

        env.change(frozen=True)
        frozen = await rig.browser.get("http://shop.example/")
        assert (frozen.status_code, frozen.json()["code"]) == (503, "environment_frozen")
        assert int(frozen.headers["retry-after"]) >= 1
        env.change(acting=True)
        assert (await rig.browser.get("http://shop.example/child")).status_code == 200, "an action's child is admitted"
        env.change(frozen=False, acting=False)

        rig.keeper.add("a", epoch=5, activation=2)
        stale = await rig.browser.get("http://shop.example/")
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_generation")
        assert (stale.json()["asked"], stale.json()["present"]) == (1, 5)
        fresh = dict((await rig.script.get("/")).json()["headers"])
        assert verify(KEY, fresh["statefork-ticket"]).epoch == 5, "a base URL is always of the present"

        del rig.keeper.envs["a"]
        gone = await rig.script.get("/")
        assert (gone.status_code, gone.json()["code"]) == (421, "unknown_environment")
        codes = [code for _, code, _, _ in rig.keeper.refusals]
        assert codes == ["unknown_host", "environment_frozen", "stale_generation", "unknown_environment"]


async def test_a_mutating_request_without_a_cause_is_recorded_with_its_body() -> None:
    async with open_rig() as rig:
        await rig.script.post("/buy", content=b"one lamp")
        await rig.script.get("/look")
        rig.keeper.envs["a"].change(acting=True)
        await rig.browser.post("http://shop.example/caused", content=b"by an action")
        assert rig.keeper.inputs == [("POST", "http://shop.example/buy", b"one lamp", 200)]


async def test_it_is_recorded_before_its_client_can_do_what_comes_next() -> None:
    async with open_rig() as rig:
        async with rig.script.stream("POST", "/stream", content=b"one lamp"):  # of the answer only the head is there
            assert [(method, body) for method, _, body, _ in rig.keeper.inputs] == [("POST", b"one lamp")]
            rig.upstream.go.set()
        assert len(rig.keeper.inputs) == 1


async def test_an_upstream_that_fails_is_told_with_502() -> None:
    scripts = {
        b"": "closed",
        b"garbage\r\n\r\n": "illegal",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello": "conflicting",
    }
    for answer, says in scripts.items():

        async def talk(stream: anyio.abc.SocketStream, answer: bytes = answer) -> None:
            await stream.receive()
            if answer:
                await stream.send(answer)

        keeper = Doorkeeper()
        async with open_script(talk) as route, open_gateway(keeper) as gateway:
            door = await gateway.open_proxy(keeper.add("a"), (route,))
            raw = await talk_raw(door, b"GET http://shop.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert raw.startswith(b"HTTP/1.1 502"), raw
            assert says in raw.decode()
            assert keeper.refusals == [(502, "upstream_failed", "GET", "http://shop.example/")]
            await keeper.until_quiet()
            assert says in keeper.spoilt["http://shop.example/"]

    keeper = Doorkeeper()
    nothing = Route(host="shop.example", upstream_host="127.0.0.1", upstream_port=1)
    async with open_gateway(keeper) as gateway:
        door = await gateway.open_site(keeper.add("a").env, nothing)
        async with httpx.AsyncClient(base_url=door.base_url, trust_env=False) as client:
            assert (await client.get("/")).status_code == 502


async def test_a_response_that_breaks_off_is_not_completed_by_the_gateway() -> None:
    async def talk(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n")

    keeper = Doorkeeper()
    async with open_script(talk) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), (route,))
        raw = await talk_raw(door, b"GET http://shop.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"hello" in raw
        assert b"content-length" not in raw.lower()
        assert not raw.endswith(b"0\r\n\r\n")


async def test_back_pressure_reaches_the_upstream_and_a_client_that_never_reads_is_ended() -> None:
    sent = 0
    ended = anyio.Event()

    async def flood(stream: anyio.abc.SocketStream) -> None:
        nonlocal sent
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                await stream.send(b"x" * 65536)
                sent += 65536
        except anyio.BrokenResourceError:
            ended.set()

    async with open_rig(Limits(stall_s=1.0)) as rig, open_script(flood) as route:
        assert rig.proxy.identity is not None
        door = await rig.gateway.open_proxy(rig.proxy.identity, (route,))
        async with await anyio.connect_tcp("127.0.0.1", door.port) as stream:
            await stream.send(b"GET http://shop.example/flood HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            with anyio.fail_after(15):
                await ended.wait()
            await rig.keeper.until_quiet()
        assert sent < 16 * 1024 * 1024, "what the client did not read was buffered by us, not by the kernel's sockets"


async def test_clients_that_break_a_limit_are_told_which() -> None:
    limits = Limits(
        head_s=0.3, idle_s=0.3, head_bytes_max=4096, headers_max=20, body_bytes_max=1000, connections_max=2, stall_s=0.5
    )
    async with open_rig(limits) as rig:
        line = b"POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n"
        cases = {
            b"GET http://shop.exam": (b"408", b"head_s"),
            line + b"X: " + b"y" * 9000: (b"431", b"head_bytes_max"),
            line + b"".join(b"X%d: 1\r\n" % n for n in range(30)) + b"\r\n": (b"431", b"headers_max"),
            line + b"Content-Length: 2000\r\n\r\n": (b"413", b"body_bytes_max"),
            line + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"z" * 2000 + b"\r\n": (b"413", b"body_bytes_max"),
        }
        for data, (status, limit) in cases.items():
            raw = await talk_raw(rig.proxy, data)
            assert raw.startswith(b"HTTP/1.1 " + status), raw[:300]
            assert limit in raw
        assert await talk_raw(rig.proxy, b"") == b"", "an idle connection is closed without a word"
        assert await talk_raw(rig.proxy, line + b"Content-Length: 10\r\n\r\nhalf") == b"", "a body that never ends"
        await rig.keeper.until_quiet()

        port = rig.proxy.port
        async with await anyio.connect_tcp("127.0.0.1", port), await anyio.connect_tcp("127.0.0.1", port):
            with anyio.fail_after(5):
                while b"connections_max" not in await talk_raw(rig.proxy, b""):
                    pass


async def test_a_revoked_lease_ends_the_request_on_both_sides() -> None:
    async with open_rig() as rig:
        asked, left = anyio.Event(), anyio.Event()

        async def talk(stream: anyio.abc.SocketStream) -> None:
            await stream.receive()
            asked.set()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
            try:
                await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                left.set()

        async with open_script(talk) as route:
            assert rig.proxy.identity is not None
            door = await rig.gateway.open_proxy(rig.proxy.identity, (route,))
            received: list[bytes] = []

            async def ask() -> None:
                line = b"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"
                received.append(await talk_raw(door, line))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await asked.wait()
                assert len(rig.keeper.leases) == 1
                await rig.keeper.revoke_all()
            with anyio.fail_after(5):
                await left.wait()
            assert not received[0].endswith(b"x" * 96)


async def test_a_client_that_leaves_ends_its_request_upstream() -> None:
    async with open_rig() as rig:
        async with await anyio.connect_tcp("127.0.0.1", rig.proxy.port) as stream:
            await stream.send(b"GET http://shop.example/slow HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            await rig.upstream.started.wait()
            assert len(rig.keeper.leases) == 1
        await rig.keeper.until_quiet()


async def test_closing_a_door_ends_what_is_under_way_and_frees_the_port() -> None:
    async with open_rig() as rig:
        async with await anyio.connect_tcp("127.0.0.1", rig.proxy.port) as stream:
            await stream.send(b"GET http://shop.example/slow HTTP/1.1\r\nHost: shop.example\r\n\r\n")
            await rig.upstream.started.wait()
            await rig.proxy.close()
            await rig.proxy.close()
            assert not rig.keeper.leases
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        with pytest.raises(OSError, match="onnect"):
            await anyio.connect_tcp("127.0.0.1", rig.proxy.port)
        assert (await rig.script.get("/")).status_code == 200, "the other door is still there"


async def test_expect_continue_and_http_1_0() -> None:
    async with open_rig() as rig:
        async with await anyio.connect_tcp("127.0.0.1", rig.proxy.port) as stream:
            head = (
                b"POST http://shop.example/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            await stream.send(head)
            assert (await stream.receive()).startswith(b"HTTP/1.1 100")
            await stream.send(b"ok")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        old = await talk_raw(rig.site, f"GET /x HTTP/1.0\r\nHost: {authority(rig.site)}\r\n\r\n".encode())
        head, _, body = old.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert json.loads(body)["method"] == "GET"
