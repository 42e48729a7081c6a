"""What an agent, a page or a script of one environment tries at the doors: refused or cut, journaled, and no sibling's
matter. The engine, the gateway, the server and the stores are real; ``docs/security.md`` lists every attempt.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import h11
import httpx
import pytest
from wsproto.events import CloseConnection, TextMessage

from statefork.adapters.interfaces.control.address import socket_path
from statefork.adapters.interfaces.gateway import Limits, outside
from statefork.engine.kernel import DrainPolicy
from statefork.engine.origins import Origin
from statefork.engine.tickets import TICKET_HEADER, sign
from tests.integration.fences_kit import SITE, Forbidden, Pair, forbidden, open_fences, until_closed
from tests.integration.gateway_streams_kit import handshake

pytestmark = pytest.mark.anyio

NARROW = Limits(
    head_s=3.0,  # within which as many clients as a door admits are there at once, on a machine with much else to do
    idle_s=3.0,
    stall_s=3.0,
    connections_max=16,
    head_bytes_max=8192,
    headers_max=32,
    body_bytes_max=100_000,
)
REVOKE = DrainPolicy(deadline_s=0.2, then="revoke")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
async def pair(notes_base: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """One scene for all that is merely refused."""
    async with open_fences(notes_base, tmp_path_factory.mktemp("fences")) as scene:
        yield scene


# --- the proxy asked for what is not of its world -------------------------------------------------------------------


def metadata(pair: Pair, port: int) -> list[str]:
    hosts = ("169.254.169.254", "metadata.google.internal", "100.100.100.200", "[fd00:ec2::254]", "2852039166")
    return [f"http://{host}/latest/meta-data/" for host in hosts]


def the_engines_api(pair: Pair, port: int) -> list[str]:
    door = socket_path(pair.tmp / "state")
    hosts = ("localhost", "statefork", "control.sock", "127.0.0.1")
    return [*(f"http://{host}/v1/status" for host in hosts), f"unix:{door}", f"http+unix://{door}/v1/status"]


def another_environments_base_url(pair: Pair, port: int) -> list[str]:
    _, theirs = pair.site_of("b")
    return [f"{pair.base_url('b')}/notes/", f"http://localhost:{theirs}/notes/"]


def another_environments_door(pair: Pair, port: int) -> list[str]:
    return [f"http://127.0.0.1:{pair.doors[env].port}/" for env in ("b", "a")]


def the_server_behind(pair: Pair, port: int) -> list[str]:
    web: Any = pair.kernel.resources["site"]
    return [f"http://{host}:{web.server.port}/notes/" for host in ("127.0.0.1", "localhost", "notes.example")]


def guessed_ports(pair: Pair, port: int) -> list[str]:
    hosts = ("127.0.0.1", "localhost", "0.0.0.0", "127.1.2.3", socket.gethostname())
    return [f"http://{host}:{number}/" for host in hosts for number in (port, port + 1, 22, 5432, 6379, 9222)]


def other_schemes(pair: Pair, port: int) -> list[str]:
    of_files = (
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "file:/etc/passwd",
        "view-source:file:///etc/passwd",
    )
    return [*of_files, f"ftp://127.0.0.1:{port}/", f"gopher://127.0.0.1:{port}/_x", f"https://127.0.0.1:{port}/"]


def loopback_in_ipv6(pair: Pair, port: int) -> list[str]:
    hosts = ("::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::", "0:0:0:0:0:0:0:1", "::1%25lo", "::127.0.0.1")
    return [f"http://[{host}]:{port}/" for host in hosts]


def loopback_in_decimal(pair: Pair, port: int) -> list[str]:
    return [f"http://{host}:{port}/" for host in ("2130706433", "127.1", "127.0.1", "0", "127.0.0.1.")]


def loopback_in_octal(pair: Pair, port: int) -> list[str]:
    return [f"http://{host}:{port}/" for host in ("0177.0.0.1", "017700000001", "0177.1", "127.0.0.01")]


def loopback_in_hex(pair: Pair, port: int) -> list[str]:
    return [f"http://{host}:{port}/" for host in ("0x7f000001", "0x7f.0.0.1", "0X7F.1", "127.0.0.0x1")]


def names_that_look_like_its_own(pair: Pair, port: int) -> list[str]:
    hosts = ("notes.example.evil.example", "evil-notes.example", "notes.example.", "sub.notes.example")
    with_port = [f"http://notes.example:{number}/" for number in (port, 81, 443)]
    users = (f"http://notes.example@127.0.0.1:{port}/", f"http://127.0.0.1:{port}\\@notes.example/")
    return [*(f"http://{host}/" for host in hosts), *with_port, *users, f"http://notes.example%00@127.0.0.1:{port}/"]


PLACES: list[Callable[[Pair, int], list[str]]] = [
    metadata,
    the_engines_api,
    another_environments_base_url,
    another_environments_door,
    the_server_behind,
    guessed_ports,
    other_schemes,
    loopback_in_ipv6,
    loopback_in_decimal,
    loopback_in_octal,
    loopback_in_hex,
    names_that_look_like_its_own,
]


@contextlib.contextmanager
def nobody_arrives() -> Iterator[int]:
    """A port of this machine, in both families of addresses where it has both, that has had no visitor at the end."""
    with contextlib.ExitStack() as stack:
        places: list[Forbidden] = [stack.enter_context(forbidden())]
        with contextlib.suppress(OSError):
            places.append(stack.enter_context(forbidden("::1")))
        yield places[0].port
        assert not [place.port for place in places if place.visited()]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_a_proxy_leads_to_its_world_only(pair: Pair, place: Callable[[Pair, int], list[str]]) -> None:
    before = len(await pair.refusals())
    with nobody_arrives() as port:
        targets = place(pair, port)
        for target in targets:
            line = f"GET {target} HTTP/1.1\r\nHost: notes.example\r\nConnection: close\r\n\r\n"
            answer = await pair.ask(line.encode())
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421")), (target, answer)
            authority = target.partition("//")[2].partition("/")[0] or target
            for tunnel in {authority, authority if ":" in authority.rpartition("]")[2] else f"{authority}:80"}:
                if tunnel not in ("notes.example", "notes.example:80"):
                    answer = await pair.ask(f"CONNECT {tunnel} HTTP/1.1\r\nHost: {tunnel}\r\n\r\n".encode())
                    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421")), (tunnel, answer)
    told = (await pair.refusals())[before:]
    assert len(told) >= 2 * len(targets), "each is in the journal"
    assert {event.code for event in told} <= {"unknown_host", "bad_request"}
    await pair.sibling_goes_on()


async def test_a_tunnel_to_its_own_host_leads_to_no_other(pair: Pair) -> None:
    with nobody_arrives() as port:
        for head in (
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
            f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: notes.example\r\n\r\n",
            f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: notes.example\r\n\r\n",
            f"GET {pair.base_url('b')}/notes/ HTTP/1.1\r\nHost: notes.example\r\n\r\n",
        ):
            async with await anyio.connect_tcp("127.0.0.1", pair.doors["a"].port) as stream:
                await stream.send(b"CONNECT notes.example:80 HTTP/1.1\r\nHost: notes.example:80\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
                await stream.send(head.encode())
                assert (await stream.receive()).startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))
    assert {event.code for event in (await pair.refusals())[-4:]} <= {"unknown_host", "bad_request"}
    await pair.sibling_goes_on()


async def test_a_base_url_can_not_be_rebound(pair: Pair) -> None:
    """A page whose name was made to lead to the door of another environment says its own name in Host."""
    host, port = pair.site_of("a")
    before = len(await pair.refusals())
    for claimed in ("evil.example", f"evil.example:{port}", "notes.example", "127.0.0.1", f"{host}:{port + 1}"):
        refused = await pair.get("a", "/notes/", {"Host": claimed})
        assert (refused.status_code, refused.json()["code"]) == (421, "unknown_host"), claimed
    assert len(await pair.refusals()) == before + 5
    await pair.sibling_goes_on()


async def test_a_listed_name_that_leads_to_the_metadata_address_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rules a listed name's DNS does not rule where the engine goes."""

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(outside.anyio, "getaddrinfo", resolve)
    request = h11.Request(method="GET", target="/", headers=[("Host", "cdn.example")])
    answer = await outside.ask(Origin(scheme="http", host="cdn.example", port=80), request, b"", Limits())
    assert answer.error == "the name leads to 169.254.169.254, where machines keep secrets of their own"


# --- bindings, cookies, tokens --------------------------------------------------------------------------------------


async def at_the_server(pair: Pair, ticket: str) -> int:
    """Past the gateway, with a ticket: the status."""
    web: Any = pair.kernel.resources["site"]
    headers = {"Host": "notes.example", TICKET_HEADER: ticket}
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{web.server.port}/notes/", headers=headers)).status_code


async def test_a_ticket_is_worth_nothing_after_a_switch_and_nowhere_else(notes_base: Path, tmp_path: Path) -> None:
    async with open_fences(notes_base, tmp_path) as scene:
        web: Any = scene.kernel.resources["site"]
        seen = sign(web.server.ticket_key, scene.kernel.bindings("a")["site"].identity)
        assert await at_the_server(scene, seen) == 200
        through = await scene.get("b", "/notes/", {TICKET_HEADER: seen})
        assert through.json() == {"titles": ["first"]}, "the door takes it away: this is b"
        async with httpx.AsyncClient(base_url=scene.base_url("a"), trust_env=False) as client:
            assert (await client.post("/add/", data={"title": "of a"})).status_code == 200
        assert (await scene.get("b", "/notes/", {TICKET_HEADER: seen})).json() == {"titles": ["first"]}
        await scene.kernel.reset("a", drain=REVOKE)
        assert await at_the_server(scene, seen) == 409
        await scene.kernel.retire("a", drain=REVOKE)
        assert await at_the_server(scene, seen) in (409, 421)
        await scene.sibling_goes_on()


async def test_a_session_of_one_environment_is_nobody_in_another(pair: Pair) -> None:
    async with httpx.AsyncClient(base_url=pair.base_url("a"), trust_env=False) as client:
        await client.post("/login/", data={"user": "alice"})
        assert (await client.get("/whoami/")).text == "alice"
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    assert cookies
    assert (await pair.get("a", "/whoami/", {"Cookie": cookies})).text == "alice"
    assert (await pair.get("b", "/whoami/", {"Cookie": cookies})).text == ""
    await pair.sibling_goes_on()


# --- floods, and clients that take their time -----------------------------------------------------------------------


async def heads(scene: Pair) -> None:
    """Requests whose heads do not end, in bytes and in lines."""
    line = f"GET {SITE}/notes/ HTTP/1.1\r\nHost: notes.example\r\n".encode()
    for flood in (b"X: " + b"y" * 20_000, b"".join(b"X%d: 1\r\n" % number for number in range(64)) + b"\r\n"):
        assert (await scene.ask(line + flood)).startswith(b"HTTP/1.1 431")


async def bodies(scene: Pair) -> None:
    """Bodies that are longer than any may be: announced, and not announced."""
    line = f"POST {SITE}/add/ HTTP/1.1\r\nHost: notes.example\r\n".encode()
    for flood in (
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000,
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 8 + b"0\r\n\r\n",
    ):
        assert (await scene.ask(line + flood)).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


async def slow_heads(scene: Pair) -> None:
    """As many clients as the door admits, each with a byte from time to time; one more is told that it is full."""
    async with AsyncExitStack() as stack:
        door = scene.doors["a"].port
        slow = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", door)) for _ in range(16)]
        for stream in slow:
            await stream.send(b"GET http://notes.exam")
        full = await scene.ask(b"")
        assert full.startswith(b"HTTP/1.1 503")
        assert b"connections_max is 16" in full

        async def dribble(stream: anyio.abc.SocketStream) -> None:
            async with anyio.create_task_group() as tasks:

                async def bytes_one_by_one() -> None:
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        while True:
                            await stream.send(b"p")
                            await anyio.sleep(0.05)  # slower than a limit, and never silent: that is the attempt

                tasks.start_soon(bytes_one_by_one)
                assert (await until_closed(stream)).startswith(b"HTTP/1.1 408")
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for stream in slow:
                tasks.start_soon(dribble, stream)


async def connections(scene: Pair) -> None:
    """Connections and nothing else, again and again: those beyond the limit are told, those within it are closed."""
    async with AsyncExitStack() as stack:
        door = scene.doors["a"].port
        idle = [await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", door)) for _ in range(64)]
        told = []

        async def wait(stream: anyio.abc.SocketStream) -> None:
            told.append((await until_closed(stream))[:12])

        async with anyio.create_task_group() as tasks:
            for stream in idle:
                tasks.start_soon(wait, stream)
        assert told.count(b"HTTP/1.1 503") == 48


@pytest.mark.parametrize("flood", [heads, bodies, slow_heads, connections], ids=lambda flood: flood.__name__)
async def test_a_flood_at_one_door_is_cut_and_its_sibling_served(
    notes_base: Path, tmp_path: Path, flood: Callable[[Pair], Any]
) -> None:
    async with open_fences(notes_base, tmp_path, NARROW) as scene:
        over = anyio.Event()

        async def flooded() -> None:
            await flood(scene)
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flooded)
            while not over.is_set():
                await scene.sibling_goes_on()
        assert "limit_exceeded" in {event.code for event in await scene.refusals()}
        fine = f"GET {SITE}/notes/ HTTP/1.1\r\nHost: notes.example\r\nConnection: close\r\n\r\n".encode()
        assert (await scene.ask(fine)).startswith(b"HTTP/1.1 200"), "the door serves whoever behaves"
        await scene.sibling_goes_on()


# --- what lives on after a switch -----------------------------------------------------------------------------------


async def test_a_websocket_of_the_generation_before_says_nothing_more(notes_base: Path, tmp_path: Path) -> None:
    async with open_fences(notes_base, tmp_path) as scene, AsyncExitStack() as stack:
        talks = {}
        for env in ("a", "b"):
            stream = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", scene.doors[env].port))
            talks[env] = await handshake(stream, "socket.example")
            await talks[env].send(TextMessage(data=f"of {env}"))
            assert await talks[env].next() == TextMessage(data=f"echo of {env}")
        await scene.kernel.reset("a", drain=REVOKE)
        with contextlib.suppress(anyio.BrokenResourceError):
            await talks["a"].send(TextMessage(data="after the switch"))
        assert isinstance(await talks["a"].next(), CloseConnection)
        await talks["b"].send(TextMessage(data="and on"))
        assert await talks["b"].next() == TextMessage(data="echo and on")
        assert scene.messages == ["of a", "of b", "and on"]
        late = await scene.ask(f"GET {SITE}/notes/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert late.startswith(b"HTTP/1.1 409"), "nor does the door of the activation that is over"
        assert {event.code for event in await scene.refusals()} == {"stale_generation"}
        await scene.sibling_goes_on()
