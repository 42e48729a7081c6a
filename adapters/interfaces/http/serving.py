"""Serving applications over TCP, on trio: Hypercorn's HTTP, over streams that bound how long a client may take.

Hypercorn waits for as long as it takes until a client reads. These streams give a client a deadline for each piece, and
then end the connection; so who never reads costs a connection for a while, and holds up neither others nor the end.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from statefork.adapters.interfaces.cli.faults import UsageError
from statefork.adapters.interfaces.http.asking import STALL_S

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
IDLE_S = 15.0
"""Between two requests on one connection, and from a connection's beginning to the end of its first head."""
GRACE_S = 5.0
"""How long requests under way may go on when it is closed."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
_BACKLOG = 1024
_SILENCE_S = 60  # before a client is asked whether its end of the connection still exists
_PIECE_BYTES = 65_536
_SEND_BUFFER_BYTES = 256 * 1024  # what the kernel holds for a client that does not read
_HEAD_BYTES_MAX = 65_536
LOOPBACK = "127.0.0.1"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Place(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback


def place_of(text: str) -> Place:
    """``8080``, ``127.0.0.1:8080``, ``[::1]:8080``: loopback unless another address is named. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    try:
        number = int(port)
        if host != "localhost":
            ipaddress.ip_address(host)
        if not 0 <= number <= 65_535:
            raise ValueError(port)
    except ValueError:
        raise UsageError(
            f"{text!r} is no address to listen at", hint="Say PORT or ADDRESS:PORT, such as 127.0.0.1:8642"
        ) from None
    return Place(LOOPBACK if host == "localhost" else host, number)


class Served(NamedTuple):
    """Where an application is served."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its base URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class _Bounded:
    """A stream whose reader has a deadline for each piece that it is sent. Of trio's stream what Hypercorn uses."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        self.receive_some = stream.receive_some
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    async def send_all(self, data: bytes) -> None:
        """Send in pieces. Raises trio.BrokenResourceError for a client that takes none of it for a while."""
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            with trio.move_on_after(STALL_S) as deadline:
                await self._stream.send_all(view[at : at + _PIECE_BYTES])
            if deadline.cancelled_caught:
                self.socket.close()
                raise trio.BrokenResourceError(f"the client read nothing for {STALL_S:g} s")

    async def turn_away(self) -> None:
        """Say that there are too many already, and close."""
        await self.send_all(_TOO_MANY)
        await self.aclose()


class _Http1(H11Protocol):
    """Speaks nothing else: with HTTP/2 a client that does not read is held up where no deadline of ours sees it."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return


class _Connection(TCPServer):
    """Ends with its client, and not only when that would have been idle for too long."""

    _gone = False

    async def _read_data(self) -> None:
        own = self.protocol
        own.protocol = _Http1(
            *(own.app, own.config, own.context, own.task_group, own.state, own.ssl, own.client, own.server, own.send)
        )
        await super()._read_data()
        self._gone = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if not (self._gone and isinstance(event, Updated)):
            await super().protocol_send(event)


def _config() -> Config:
    config = Config()
    config.keep_alive_timeout = IDLE_S
    config.h11_max_incomplete_size = _HEAD_BYTES_MAX
    config.websocket_max_message_size = MESSAGE_BYTES_MAX
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("statefork.http")
    return config


def _listen(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Those that it accepts have these too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S)
        listener.bind((place.host, place.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"can't listen at {place.host}:{place.port}: {error.strerror}") from None
    return listener


@asynccontextmanager
async def served(
    app: ASGIApp, place: Place, *, hurried: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[Served]:
    """Serve an application while the body runs; then requests under way have a little time to end.

    ``hurried`` returns when they are not to have it: whoever closes the engine gives up on them. Raises UsageError
    where the address can't be had.
    """
    listener = _listen(place)
    host, port = listener.getsockname()[:2]
    config, context = _config(), WorkerContext(None)
    wrapped, there = wrap_app(cast(ASGIFramework, app), 0, "asgi"), 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal there
        bounded = _Bounded(stream)
        if there >= CONNECTIONS_MAX:
            await _quietly(bounded.turn_away)
            return
        there += 1
        try:
            state = ConnectionState(LifespanState({}))
            await _quietly(_Connection(wrapped, config, context, state, cast(Any, bounded)).run)
        finally:
            there -= 1

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as connections:
            if hurried is not None:
                nursery.start_soon(_cut_off, hurried, connections.cancel_scope)
            listening = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
            accepting = await nursery.start(_accept, serve, listening, connections)
            try:
                yield Served(host, port)
            finally:
                accepting.cancel()
                listener.close()
                await context.terminated.set()
                connections.cancel_scope.shield = True
                connections.cancel_scope.deadline = trio.current_time() + GRACE_S
        nursery.cancel_scope.cancel()


async def _accept(
    serve: Callable[[trio.SocketStream], Awaitable[None]],
    listener: trio.SocketListener,
    connections: trio.Nursery,
    *,
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await trio.serve_listeners(serve, [listener], handler_nursery=connections)


async def _cut_off(hurried: Callable[[], Awaitable[None]], connections: trio.CancelScope) -> None:
    await hurried()
    connections.cancel()


async def _quietly(run: Callable[[], Awaitable[None]]) -> None:
    """One connection must not end the others."""
    with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        try:
            await run()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception:  # noqa: BLE001 -- logged with its traceback
            _log.exception("a connection failed")
