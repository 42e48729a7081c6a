"""Connections that outlive their request: WebSockets and event streams. A lease per message, held at its boundary.

Nothing is read from the sender while a message waits for its lease, so a held stream costs one message of memory and
pushes back on whoever sends.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import h11
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from statefork.adapters.interfaces.gateway import heads
from statefork.adapters.interfaces.gateway.refusals import Headers
from statefork.adapters.interfaces.gateway.wire import Gone, Wire
from statefork.journal.errors import StateforkError

if TYPE_CHECKING:
    from statefork.adapters.interfaces.gateway.asked import Asked, Opened
    from statefork.adapters.interfaces.gateway.client import Client

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


async def deliver(client: Client, asked: Asked, opened: Opened, kind: str, send: Callable[[], Awaitable[None]]) -> None:
    """Send one message under a lease of its own. Raises Gone when the environment has moved to another epoch."""
    request = asked.admission(client.door, kind, pinned_epoch=opened.lease.identity.epoch)
    try:
        async with client.admission.admit(request):
            await send()
    except StateforkError as error:
        raise Gone(str(error)) from None


# --- server-sent events -------------------------------------------------------------------------------------------


async def relay_events(client: Client, asked: Asked, opened: Opened) -> None:
    """Whole events to the client, until either side ends."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_until_gone, client.wire, tasks.cancel_scope)
        with contextlib.suppress(Gone, h11.ProtocolError):  # an abrupt end: an EventSource connects again by itself
            await _relay_events(client, asked, opened)
        tasks.cancel_scope.cancel()


async def _until_gone(wire: Wire, scope: anyio.CancelScope) -> None:
    """A client of an event stream sends nothing more: whatever comes is its end."""
    with contextlib.suppress(Gone):
        await wire.receive(float("inf"), "client")
    scope.cancel()


async def _relay_events(client: Client, asked: Asked, opened: Opened) -> None:
    held = bytearray()
    ended = False
    while not ended:
        event = await opened.upstream.next_event(float("inf"), "event stream")
        if isinstance(event, h11.Data):
            held += event.data
            if len(held) > client.limits.event_bytes_max:
                raise Gone(f"event_bytes_max is {client.limits.event_bytes_max}")
            size = max((match.end() for match in _EVENT_END.finditer(held)), default=0)
        elif isinstance(event, h11.EndOfMessage):
            size, ended = len(held), True
        else:
            raise Gone("the upstream closed its event stream")
        if size or ended:
            whole = bytes(held[:size])
            del held[:size]
            await deliver(client, asked, opened, "event-stream-message", partial(_send, client.wire, whole, ended))


async def _send(wire: Wire, data: bytes, ended: bool) -> None:
    if data:
        await wire.send(h11.Data(data=data))
    if ended:
        await wire.send(h11.EndOfMessage())


# --- WebSockets ---------------------------------------------------------------------------------------------------


def handshake_headers(headers: Headers) -> Headers:
    """The upstream's side of the handshake. No extensions: frames are read at message boundaries on both sides."""
    kept = [(name, value) for name, value in headers if name != b"sec-websocket-extensions"]
    return [*kept, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]


async def accept_handshake(wire: Wire, request: h11.Request, answer: h11.InformationalResponse) -> None:
    """Pass the upstream's 101 on, once it proves to be an answer to this very handshake."""
    key = next((value for name, value in request.headers if name == b"sec-websocket-key"), b"")
    token = next((value for name, value in answer.headers if name == b"sec-websocket-accept"), b"")
    if token != generate_accept_token(key):
        raise Gone("the upstream's WebSocket handshake does not fit the key")
    if any(name == b"sec-websocket-extensions" for name, _ in answer.headers):
        raise Gone("the upstream chose a WebSocket extension that was not offered")
    headers = heads.response_headers(answer.headers)
    headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    await wire.send(h11.InformationalResponse(status_code=101, headers=headers, reason=b"Switching Protocols"))


async def relay_websocket(client: Client, asked: Asked, opened: Opened) -> None:
    """Messages both ways until one side closes."""
    browser = _Side(client.wire, ConnectionType.SERVER, client.limits.message_bytes_max)
    server = _Side(opened.upstream, ConnectionType.CLIENT, client.limits.message_bytes_max)
    async with anyio.create_task_group() as tasks:

        async def pump(source: _Side, target: _Side) -> None:
            try:
                await source.pump(lambda message: _pass(message, target))
            except Gone as gone:
                await source.say_goodbye(gone)
                await target.say_goodbye(gone)
            tasks.cancel_scope.cancel()

        async def _pass(message: Message[Any], target: _Side) -> None:
            await deliver(client, asked, opened, "websocket-message", lambda: target.send(message))

        tasks.start_soon(pump, browser, server)
        tasks.start_soon(pump, server, browser)


class _Side:
    """One end of a WebSocket whose handshake is done."""

    def __init__(self, wire: Wire, role: ConnectionType, message_bytes_max: int) -> None:
        self._wire = wire
        trailing, _ = wire.http.trailing_data
        self._frames = Connection(role, trailing_data=trailing)
        self._message_bytes_max = message_bytes_max
        self._lock = anyio.Lock()  # messages and pongs of two tasks go out on one stream

    async def pump(self, deliver_message: Callable[[Message[Any]], Awaitable[None]]) -> None:
        """Hand on whole messages. Raises Gone when this side closes or breaks a rule."""
        parts: list[Any] = []
        size = 0
        while True:
            try:
                events = list(self._frames.events())
            except RemoteProtocolError as error:
                raise Gone(str(error)) from None
            for event in events:
                if isinstance(event, Message):
                    size += len(event.data)
                    if size > self._message_bytes_max:
                        raise Gone(f"message_bytes_max is {self._message_bytes_max}")
                    parts.append(event.data)
                    if event.message_finished:
                        await deliver_message(_whole(event, parts))
                        parts, size = [], 0
                elif isinstance(event, Ping):
                    await self.send(event.response())
                elif isinstance(event, CloseConnection):
                    raise _Closed(event)
            data = await self._wire.receive(float("inf"), "websocket")
            self._frames.receive_data(data or None)

    async def send(self, event: Event) -> None:
        """Send an event as frames."""
        async with self._lock:
            await self._wire.send_bytes(self._frames.send(event))

    async def say_goodbye(self, reason: Gone) -> None:
        """Close in order, as far as the other side still listens."""
        farewell = CloseConnection(CloseReason.GOING_AWAY, str(reason)[:100])
        event = reason.event if isinstance(reason, _Closed) else farewell
        with anyio.move_on_after(1):
            with contextlib.suppress(Gone, LocalProtocolError):
                await self.send(event)


class _Closed(Gone):
    """A side closed the WebSocket; the other is told the same."""

    def __init__(self, event: CloseConnection) -> None:
        super().__init__("closed")
        self.event = event if event.code != CloseReason.NO_STATUS_RCVD else CloseConnection(CloseReason.NORMAL_CLOSURE)


def _whole(last: Message[Any], parts: list[Any]) -> Message[Any]:
    if isinstance(last, TextMessage):
        return TextMessage(data="".join(parts))
    return BytesMessage(data=b"".join(bytes(part) for part in parts))
