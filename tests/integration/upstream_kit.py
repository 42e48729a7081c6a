"""Upstreams for the gateway's tests: a real ASGI server, and a listener that says whatever bytes a test scripts."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import hypercorn.config
import sniffio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as Path
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from statefork.adapters.interfaces.accepting import accept_each
from statefork.engine.ports import Listener, Route

KEY = b"k" * 32


class Upstream:
    """A running application, and the strings that a test pulls."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.go = anyio.Event()  # releases /slow and the second half of /stream
        self.started = anyio.Event()  # /slow has begun
        self.seen: list[tuple[str, str, str]] = []  # (method, path, ticket)
        self.events_in: anyio.abc.ObjectSendStream[bytes]
        self.events_out: anyio.abc.ObjectReceiveStream[bytes]
        self.events_in, self.events_out = anyio.create_memory_object_stream[bytes](100)
        self.messages: list[str | bytes] = []
        self.sockets: list[WebSocket] = []
        self.closed = anyio.Event()  # a WebSocket has ended

    def route(self, host: str = "shop.example") -> Route:
        """How the gateway reaches it."""
        return Route(host=host, upstream_host="127.0.0.1", upstream_port=self.port, ticket_key=KEY)


def _application(upstream: Upstream) -> Starlette:
    async def echo(request: Request) -> Response:
        body = await request.body()
        upstream.seen.append((request.method, request.url.path, request.headers.get("statefork-ticket", "")))
        return JSONResponse(
            {
                "method": request.method,
                "target": request.scope["raw_path"].decode() + "?" + request.scope["query_string"].decode(),
                "headers": [[name.decode(), value.decode("latin-1")] for name, value in request.scope["headers"]],
                "size": len(body),
                "sha256": hashlib.sha256(body).hexdigest(),
            }
        )

    async def slow(request: Request) -> Response:
        upstream.seen.append((request.method, request.url.path, request.headers.get("statefork-ticket", "")))
        upstream.started.set()
        await upstream.go.wait()
        return Response("done")

    async def stream(_: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"first\n"
            await upstream.go.wait()
            yield b"second\n"

        return StreamingResponse(chunks(), media_type="text/plain")

    async def events(_: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            async for part in upstream.events_out:
                yield part

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def redirect(_: Request) -> Response:
        response = RedirectResponse("http://shop.example/next?a=1", status_code=302)
        response.set_cookie("mine", "1", domain="shop.example")
        response.headers.append("Set-Cookie", "other=2; Domain=.elsewhere.example; Path=/")
        return response

    async def login(request: Request) -> Response:
        response = Response("welcome")
        response.set_cookie("session", request.query_params["who"], domain=request.query_params["domain"])
        return response

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        upstream.sockets.append(websocket)
        try:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                text: str | None = message.get("text")
                data: bytes | None = message.get("bytes")
                upstream.messages.append(text if text is not None else data or b"")
                if text is not None:
                    await websocket.send_text(f"echo {text}")
                else:
                    await websocket.send_bytes(b"echo " + (data or b""))
        except WebSocketDisconnect:
            pass
        finally:
            upstream.closed.set()

    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]
    return Starlette(
        routes=[
            Path("/slow", slow, methods=methods),
            Path("/stream", stream, methods=methods),
            Path("/events", events),
            Path("/redirect", redirect),
            Path("/login", login),
            WebSocketRoute("/ws", talk),
            Path("/{rest:path}", echo, methods=methods),
        ]
    )


@asynccontextmanager
async def open_upstream() -> AsyncIterator[Upstream]:
    """The application on hypercorn, in the test's own event loop."""
    listening = socket.create_server(("127.0.0.1", 0))
    upstream = Upstream(listening.getsockname()[1])
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.errorlog = None
    config.graceful_timeout = config.shutdown_timeout = 0.1
    serve: Any
    if sniffio.current_async_library() == "trio":
        from hypercorn.trio import serve
    else:
        from hypercorn.asyncio import serve
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await serve(_application(upstream), config, shutdown_trigger=stop.wait)

        tasks.start_soon(run)
        try:
            yield upstream
        finally:
            upstream.go.set()
            upstream.events_in.close()
            stop.set()


@asynccontextmanager
async def open_script(talk: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> AsyncIterator[Route]:
    """A server whose every connection is handled by ``talk``, byte for byte."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await talk(stream)

    async with listener, anyio.create_task_group() as tasks:
        for each in listener.listeners:
            tasks.start_soon(accept_each, each, handle, tasks)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        try:
            yield Route(host="shop.example", upstream_host="127.0.0.1", upstream_port=port, ticket_key=KEY)
        finally:
            tasks.cancel_scope.cancel()


async def talk_raw(door: Listener, data: bytes, *, end: bool = False, within_s: float = 10) -> bytes:
    """Send bytes to a door and return everything that comes back until it closes."""
    received = b""
    with anyio.fail_after(within_s):
        async with await anyio.connect_tcp(door.host, door.port) as stream:
            try:
                await stream.send(data)
                if end:
                    await stream.send_eof()
                while True:
                    received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received
