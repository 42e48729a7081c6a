"""One exchange of a page with a host outside of its world: whole questions, whole answers, under the request's lease.

Who answers, the host or the journal, is the engine's to say (see statefork.engine.outside). Nothing of ours goes out
with a question, and what would make its answer depend on the browser's cache is taken out of it, so that the same
question has the same answer in a browser that has none. Connections that stay open are refused.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio
import h11
from anyio.streams.tls import TLSStream

from statefork.adapters.interfaces.gateway import heads
from statefork.adapters.interfaces.gateway.asked import Asked
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Headers, Refused
from statefork.adapters.interfaces.gateway.wire import Gone, Wire
from statefork.engine.errors import NotRecorded
from statefork.engine.origins import Origin, is_metadata
from statefork.engine.outside import Answer, Question
from statefork.engine.ports import RequestLease, Route

if TYPE_CHECKING:
    from statefork.adapters.interfaces.gateway.client import Client

_RECORDED_HEADERS = frozenset({"accept", "content-type", "origin", "x-requested-with"})
_OF_CACHES = frozenset({b"if-none-match", b"if-modified-since", b"if-range", b"range", b"if-match"})
_BODILESS = frozenset({204, 304})


class OutsideExchange:
    """One admitted question. Everything here runs under its lease."""

    def __init__(self, client: Client, asked: Asked, lease: RequestLease) -> None:
        self._client = client
        self._asked = asked
        self._lease = lease
        self._limits: Limits = client.limits

    async def run(self) -> None:
        """Answer it. Raises Refused, Gone."""
        if heads.is_websocket(self._asked.request) or _wants_events(self._asked.request):
            what = "WebSockets and event streams lead to hosts of the environment's world only"
            raise Refused(403, "outside_stream", what, close=True)
        if self._client.door.exchange is None:
            raise Refused(421, "unknown_host", "nobody is there to answer for hosts outside", close=True)
        body = await self._body()
        answer = await self._answer(body)
        if answer.error:
            raise Refused(502, "outside_failed", f"{self._asked.origin}: {answer.error}", journaled=True)
        await self._send(answer)

    async def _body(self) -> bytes:
        wire, most = self._client.wire, self._limits.outside_bytes_max
        if wire.http.they_are_waiting_for_100_continue:
            await wire.send(h11.InformationalResponse(status_code=100, headers=[]))
        held = bytearray()
        while True:
            try:
                event = await wire.next_event(self._limits.stall_s, "stall_s")
            except h11.RemoteProtocolError as error:
                raise Refused(400, "bad_request", str(error), close=True) from None
            if isinstance(event, h11.EndOfMessage):
                return bytes(held)
            if not isinstance(event, h11.Data):
                raise Gone("the client left in the middle of its request")
            held += event.data
            if len(held) > most:
                raise Refused(413, "limit_exceeded", f"outside_bytes_max is {most}", close=True)

    async def _answer(self, body: bytes) -> Answer:
        asked, request = self._asked, self._asked.request
        kept = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        question = Question(
            method=asked.method,
            url=asked.url,
            headers={name: value for name, value in kept.items() if name in _RECORDED_HEADERS},
            body=body_digest(body, kept.get("content-type", "")),
        )
        answer: Answer | None = None
        fault: NotRecorded | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            try:
                answer = await self._client.door.exchange(self._lease, question, lambda: self._ask(body))
            except NotRecorded as error:
                fault = error
            tasks.cancel_scope.cancel()
        if fault is not None:
            raise Refused(502, fault.code, fault.message)
        if answer is None:
            raise Gone("the client closed the connection before it was answered")
        return answer

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """End the exchange when the client leaves; what it sends ahead is kept for the next one."""
        try:
            data = await self._client.wire.receive(float("inf"), "client")
        except Gone:
            data = b""
        if data:
            self._client.wire.http.receive_data(data)
        else:
            scope.cancel()

    async def _ask(self, body: bytes) -> Answer:
        origin = self._asked.origin
        assert origin is not None
        asked = self._asked.request
        length = len(body) if self._asked.length is None else self._asked.length
        headers = heads.request_headers(asked, length, origin.authority, ())
        headers = [(name, value) for name, value in headers if name not in _OF_CACHES]
        request = h11.Request(method=asked.method, target=self._asked.path, headers=headers)
        return await ask(origin, request, body, self._limits)

    async def _send(self, answer: Answer) -> None:
        wire = self._client.wire
        headers: Headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        has_body = answer.status not in _BODILESS and self._asked.method != "HEAD"
        if has_body:
            headers.append((b"content-length", str(len(answer.body)).encode()))
        reason = HTTPStatus(answer.status).phrase.encode() if answer.status in set(HTTPStatus) else b""
        await wire.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        if has_body and answer.body:
            await wire.send(h11.Data(data=answer.body))
        await wire.send(h11.EndOfMessage())


def outside_of(route: Route, *, secure: bool) -> Origin | None:
    """The origin to which a route leads outside. Raises Refused where the question came otherwise than it says."""
    if not route.outside and not secure:
        return None
    if (route.outside == "https") is not secure:
        raise Refused(421, "unknown_host", f"{route.host} is listed with the scheme {route.outside} only")
    return Origin(scheme="https" if secure else "http", host=route.upstream_host, port=route.upstream_port)


def body_digest(body: bytes, content_type: str) -> str:
    """What a question's body is known by. Of a form in parts without its boundary, which browsers draw by chance."""
    if not body:
        return ""
    kind, _, parameter = content_type.partition("boundary=")
    if kind.lower().startswith("multipart/") and (boundary := parameter.split(";")[0].strip().strip('"')):
        body = body.replace(boundary.encode("latin-1"), b"")
    return hashlib.sha256(body).hexdigest()


def _wants_events(request: h11.Request) -> bool:
    return b"text/event-stream" in heads.listed(request.headers, b"accept")


async def ask(origin: Origin, request: h11.Request, body: bytes, limits: Limits) -> Answer:
    """The host's own answer. Whatever goes wrong is one, too: what a page met then it meets again."""
    try:
        with anyio.fail_after(limits.outside_s):
            wire = await _connect(origin, limits)
            try:
                return await _ask(wire, request, body, limits)
            finally:
                with anyio.CancelScope(shield=True):
                    await wire.close()
    except TimeoutError:
        return Answer(error=f"outside_s: no whole answer within {limits.outside_s:g} s")
    except Gone as error:
        return Answer(error=str(error))


async def _connect(origin: Origin, limits: Limits) -> Wire:
    try:
        found = await anyio.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Gone(f"the name is not known: {error.strerror or error}") from None
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    allowed = [address for address in addresses if address == origin.host or not is_metadata(address)]
    if not allowed:
        raise Gone(f"the name leads to {', '.join(addresses)}, where machines keep secrets of their own")
    fault = ""
    for address in allowed:
        try:
            with anyio.fail_after(limits.connect_s):
                stream: Any = await anyio.connect_tcp(address, origin.port)
                if origin.secure:
                    stream = await _secured(stream, origin.host)
            return Wire(stream, h11.CLIENT, limits)
        except TimeoutError:
            fault = f"connect_s: no connection within {limits.connect_s:g} s"
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            fault = f"can't connect: {error}"
    raise Gone(fault)


async def _secured(stream: anyio.abc.SocketStream, host: str) -> TLSStream:
    """The host proves that it is the one: by certificates that this machine trusts."""
    try:
        return await TLSStream.wrap(
            stream, hostname=host, ssl_context=ssl.create_default_context(), standard_compatible=False
        )
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise


async def _ask(wire: Wire, request: h11.Request, body: bytes, limits: Limits) -> Answer:
    try:
        return await _exchange(wire, request, body, limits)
    except h11.RemoteProtocolError as error:
        broke = "it closed the connection without a whole answer"
        raise Gone(broke if wire.http.trailing_data[1] else f"it does not speak HTTP/1.1: {error}") from None


async def _exchange(wire: Wire, request: h11.Request, body: bytes, limits: Limits) -> Answer:
    await wire.send(request)
    if body:
        await wire.send(h11.Data(data=body))
    await wire.send(h11.EndOfMessage())
    head = await wire.next_event(limits.outside_s, "outside_s")
    while isinstance(head, h11.InformationalResponse):
        head = await wire.next_event(limits.outside_s, "outside_s")
    if heads.is_event_stream(head):
        return Answer(error="it answers with an event stream, which does not end")
    held = bytearray()
    while isinstance(event := await wire.next_event(limits.outside_s, "outside_s"), h11.Data):
        held += event.data
        if len(held) > limits.outside_bytes_max:
            return Answer(error=f"outside_bytes_max: its answer has more than {limits.outside_bytes_max} bytes")
    return Answer(status=head.status_code, headers=_kept(head.headers), body=bytes(held))


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in heads.response_headers(headers)
        if name != b"content-length"
    )
