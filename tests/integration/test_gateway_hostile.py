"""Hostile clients: no forged ticket, no smuggled request and no crash, whatever the bytes."""

from __future__ import annotations

import logging
import re
import socket
import struct

import anyio
import anyio.abc
import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefork.adapters.interfaces.gateway import Limits, heads, open_gateway
from statefork.adapters.interfaces.gateway.refusals import Refused
from statefork.engine.tickets import RESERVED_PREFIX, TICKET_HEADER, TicketRefused, sign, verify
from statefork.journal.values import Identity
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.upstream_kit import KEY, open_script, talk_raw

FORGED = sign(KEY, Identity(env="victim", epoch=1, activation=1))  # the best forgery: signed with the very key
SPELLINGS = (
    "Statefork-Ticket",
    "statefork-ticket",
    "STATEFORK-TICKET",
    "Statefork_Ticket",
    "STATEFORK_TICKET",
    "statefork-Ticket_",
    "Statefork-Activation",
    "X-Forwarded-Host",
    "Forwarded",
)


class Tap:
    """What an upstream really received, connection by connection, each answered once."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def talk(self, stream: anyio.abc.SocketStream) -> None:
        """Read one request to its end, by its own framing, and answer it."""
        parser = h11.Connection(h11.SERVER)
        raw = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive()
                raw += data
                parser.receive_data(data)
            elif isinstance(event, h11.EndOfMessage):
                break
        self.requests.append(raw)
        assert parser.trailing_data[0] == b"", "more than one request came down one upstream connection"
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def tickets_in(raw: bytes) -> list[bytes]:
    """Every ticket-like header in a request's head, in any spelling."""
    head = raw.split(b"\r\n\r\n")[0]
    names = [line.split(b":")[0].strip().lower().replace(b"_", b"-") for line in head.split(b"\r\n")[1:]]
    return [name for name in names if name.startswith(RESERVED_PREFIX.encode())]


def one_ticket(raw: bytes) -> Identity:
    """The identity of the only ticket."""
    assert tickets_in(raw) == [TICKET_HEADER.lower().encode()], raw
    found = re.search(rb"(?im)^statefork-ticket: (\S+)\r$", raw)
    assert found is not None
    return verify(KEY, found[1].decode())


pytestmark = pytest.mark.anyio


async def test_forged_tickets_never_pass_in_any_spelling() -> None:
    tap, keeper = Tap(), Doorkeeper()
    identity = keeper.add("a")
    async with open_script(tap.talk) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(identity, (route,))
        start = b"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n"
        for name in SPELLINGS:
            lines = f"{name}: {FORGED}\r\n".encode()
            for extra in (
                lines,
                lines * 2,
                lines + f"Connection: close, {name}, Host, Content-Length\r\n".encode(),
                f"{name}:{FORGED}\r\n".encode(),
                f"X-A: 1\r\n{name}:\r\n {FORGED}\r\n".encode(),
                f"X-A: 1\r\n {name}: {FORGED}\r\n".encode(),
            ):
                raw = await talk_raw(door, start + b"Connection: close\r\n" + extra + b"\r\n")
                assert raw.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), raw
        assert len(tap.requests) >= 4 * len(SPELLINGS)
        for request in tap.requests:
            assert one_ticket(request) == identity
            assert not re.search(rb"(?im)^(x-)?forwarded", request)
            assert re.search(rb"(?im)^host: shop\.example\r$", request)


SMUGGLED = b"GET http://shop.example/smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: 1\x00\r\n",
        b"Host: other.example\r\n",
        b"\xffX: 1\r\n",
    ],
)
async def test_requests_that_two_servers_could_read_differently_are_refused(lines: bytes) -> None:
    tap, keeper = Tap(), Doorkeeper()
    async with open_script(tap.talk) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), (route,))
        head = b"POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n" + lines + b"\r\n"
        raw = await talk_raw(door, head + b"0\r\n\r\n" + SMUGGLED)
        assert raw.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), raw
        assert raw.count(b"HTTP/1.1 ") == 1, "the connection went on after a request that can't be trusted"
        assert tap.requests == []
        assert keeper.refusals
        assert keeper.refusals[0][1] == "bad_request"


async def test_nominated_headers_do_not_change_the_framing() -> None:
    tap, keeper = Tap(), Doorkeeper()
    async with open_script(tap.talk) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), (route,))
        nominated = b"Connection: Content-Length, Transfer-Encoding, Host, X-Mine, close\r\nX-Mine: 1\r\n"
        head = b"POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n" + nominated
        raw = await talk_raw(door, head + b"\r\nabc")
        assert raw.startswith(b"HTTP/1.1 200")
        (request,) = tap.requests
        assert request.lower().count(b"content-length: 3") == 1
        assert request.endswith(b"\r\n\r\nabc")
        assert b"x-mine" not in request.lower()


async def test_targets_that_are_no_urls_are_refused() -> None:
    tap, keeper = Tap(), Doorkeeper()
    async with open_script(tap.talk) as route, open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), (route,))
        for target in (
            b"http://user@shop.example/",
            b"http://shop.example:99999/",
            b"http://shop.example@evil.example/",
            b"http://[::1]/",
            b"https://shop.example/",
            b"ftp://shop.example/",
            b"http:///",
            b"*",
            b"shop.example:80",
            b"http://shop.example/#part",
            b"http://shop.example./",
            b"http://shop.example\\@evil.example/",
            b"/no-host",
        ):
            line = b"GET " + target + b" HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
            raw = await talk_raw(door, line)
            assert raw.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421")), (target, raw)
        assert tap.requests == []
        upper = b"GET HTTP://SHOP.EXAMPLE:80?q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await talk_raw(door, upper)).startswith(b"HTTP/1.1 200")
        assert tap.requests[0].startswith(b"GET /?q HTTP/1.1\r\n")


# --- fuzz ---------------------------------------------------------------------------------------------------------

_names = st.sampled_from([*SPELLINGS, "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Expect"])
_values = st.one_of(
    st.sampled_from(["chunked", "0", "5", "3, 3", "close", "websocket", "100-continue", "shop.example", FORGED, ""]),
    st.text(st.characters(max_codepoint=255), max_size=30),
)
_separators = st.sampled_from(["\r\n", "\n", "\r", "\r\n ", "\r\n\t", ""])
_lines = st.lists(
    st.tuples(st.one_of(_names, st.text(st.characters(max_codepoint=255), max_size=12)), _values, _separators),
    max_size=8,
)
_targets = st.one_of(
    st.sampled_from(
        ["http://shop.example/", "/", "*", "shop.example:80", "http://victim.example/", "http://shop.example"]
    ),
    st.text(st.characters(max_codepoint=255), max_size=40),
)
_methods = st.sampled_from(["GET", "POST", "CONNECT", "HEAD", "OPTIONS", "TRACE", "get", "G T", "\x00"])


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Bytes that begin like a request and go wrong anywhere, or that never were one."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.binary(max_size=200))
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", ""]))
    head = f"{draw(_methods)} {draw(_targets)} {version}\r\n"
    if draw(st.booleans()):
        head += "Host: shop.example\r\n"
    head += "".join(f"{name}: {value}{end or chr(13) + chr(10)}" for name, value, end in draw(_lines))
    body = draw(st.one_of(st.just(b""), st.just(b"0\r\n\r\n"), st.just(SMUGGLED), st.binary(max_size=60)))
    return head.encode("latin-1") + b"\r\n" + body


@given(data=st.lists(hostile(), min_size=1, max_size=3))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_bytes_crash_the_gateway_or_carry_a_ticket_through(data: list[bytes]) -> None:
    faults: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = faults.append  # type: ignore[method-assign]  # collects instead of printing
    logger = logging.getLogger("statefork.gateway")
    logger.addHandler(handler)
    try:
        anyio.run(_survive, data, backend="trio")
    finally:
        logger.removeHandler(handler)
    assert not faults, faults[0].getMessage()


async def _survive(data: list[bytes]) -> None:
    tap, keeper = Tap(), Doorkeeper()
    identity = keeper.add("a")
    limits = Limits(head_s=0.05, idle_s=0.05, stall_s=0.05, response_s=0.5)
    async with open_script(tap.talk) as route, open_gateway(keeper, limits) as gateway:
        for door in (await gateway.open_proxy(identity, (route,)), await gateway.open_site("a", route)):
            for part in data:
                await talk_raw(door, part, end=True, within_s=20)
            fine = (
                f"GET {'http://shop.example' if door.identity else ''}/fine HTTP/1.1\r\nHost: localhost:{door.port}\r\n"
            )
            raw = await talk_raw(door, fine.encode() + b"Connection: close\r\n\r\n")
            assert raw.startswith(b"HTTP/1.1 200"), "the door does not serve any more"
        await keeper.until_quiet()
    for request in tap.requests:
        assert one_ticket(request) == identity
        assert re.search(rb"(?im)^host: shop\.example\r$", request)


@given(
    headers=st.lists(
        st.tuples(
            st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", fullmatch=True),
            st.from_regex(r"[!-~]{0,20}", fullmatch=True),
        ),
        max_size=10,
    )
)
def test_no_header_that_a_server_could_fold_into_ours_passes(headers: list[tuple[str, str]]) -> None:
    try:
        request = h11.Request(method="GET", target="/", headers=[("Host", "a"), *headers])
        passed = heads.request_headers(request, 0, "a", ())
    except (h11.LocalProtocolError, Refused):
        return
    folded = [re.sub(rb"[-_]", b"-", name.lower()) for name, _ in passed]
    assert not [name for name in folded if name.startswith(b"statefork-")]
    assert folded.count(b"host") == 1


@given(st.text(max_size=200) | st.from_regex(r"1\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_no_text_but_a_ticket_is_a_ticket(text: str) -> None:
    with pytest.raises(TicketRefused):
        verify(KEY, text)


@given(st.builds(Identity, env=st.text(max_size=60), epoch=st.integers(0, 2**60), activation=st.integers(0, 2**60)))
def test_a_ticket_proves_its_identity_to_its_own_server_only(identity: Identity) -> None:
    ticket = sign(KEY, identity)
    assert verify(KEY, ticket) == identity
    with pytest.raises(TicketRefused):
        verify(b"o" * 32, ticket)


@pytest.mark.anyio
async def test_a_client_that_leaves_without_reading_its_refusal_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """As Chromium does whenever an agent goes to a host that the world does not have."""
    keeper = Doorkeeper()
    async with open_gateway(keeper) as gateway:
        door = await gateway.open_proxy(keeper.add("a"), ())
        for number in range(20):
            with socket.create_connection(("127.0.0.1", door.port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leave by a reset
                client.sendall(b"CONNECT google.com:443 HTTP/1.1\r\nHost: google.com:443\r\n\r\n" + b"x" * 4096)
            await keeper.until(lambda number=number: len(keeper.refusals) == number + 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
