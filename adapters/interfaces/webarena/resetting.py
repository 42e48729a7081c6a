"""WebArena's reset server: what its tools ask to have all sites as they were.

``GET /reset`` answers 200 and resets, or 418 while that is under way; ``GET /status`` answers ``Ready for duty!``,
``Reset ongoing``, or 500 with what went wrong. BrowserGym finds it by the variable WA_FULL_RESET, and asks for the
status every 20 seconds: so that waits a while for the reset's end before it says that there is none yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus

import anyio
import anyio.abc
import h11

from statefork.journal.errors import StateforkError

READY = "Ready for duty!"
ONGOING = "Reset ongoing"
STARTED = "Reset initiated, check status"
REQUEST_S = 30.0
"""How long a client may take to ask."""

HOLD_S = 5.0
"""How long the status waits for the end of a reset. Most take one second."""

_TEAPOT = 418
_RECEIVE_BYTES = 64 * 1024


class _Resets:
    """At most one reset at a time, and how the last one went."""

    def __init__(self, reset: Callable[[], Awaitable[object]], hold_s: float) -> None:
        self._reset = reset
        self._hold_s = hold_s
        self._running: anyio.Event | None = None
        self._failed = ""

    async def answer(self, method: str, path: str, tasks: anyio.abc.TaskGroup) -> tuple[int, str]:
        """Status and text for one request."""
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "GET /reset or GET /status"
        if path == "/status":
            if self._running is not None:
                with anyio.move_on_after(self._hold_s):
                    await self._running.wait()
            if self._running is not None:
                return HTTPStatus.OK, ONGOING
            return (HTTPStatus.INTERNAL_SERVER_ERROR, self._failed) if self._failed else (HTTPStatus.OK, READY)
        if path != "/reset":
            return HTTPStatus.NOT_FOUND, "GET /reset or GET /status"
        if self._running is not None:
            return _TEAPOT, "Reset already running"
        self._running, self._failed = anyio.Event(), ""
        tasks.start_soon(self._run, self._running)
        return HTTPStatus.OK, STARTED

    async def _run(self, ended: anyio.Event) -> None:
        try:
            await self._reset()
        except StateforkError as error:
            self._failed = f"{error.code}: {error}"
        finally:
            self._running = None
            ended.set()


@asynccontextmanager
async def reset_server(
    reset: Callable[[], Awaitable[object]], *, port: int = 0, hold_s: float = HOLD_S
) -> AsyncIterator[str]:
    """Serve on loopback while the body runs; its URL, for WA_FULL_RESET. ``reset``: such as ``env.reset``.

    A reset that is under way when the body ends is awaited. Raises OSError where the port is taken.
    """
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener:
        resets = _Resets(reset, hold_s)
        number = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as running, anyio.create_task_group() as serving:

            async def serve(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    with anyio.move_on_after(REQUEST_S), _gone():
                        await _answer(stream, resets, running, f"127.0.0.1:{number}")

            serving.start_soon(listener.serve, serve)
            try:
                yield f"http://127.0.0.1:{number}"
            finally:
                serving.cancel_scope.cancel()


async def _answer(stream: anyio.abc.SocketStream, resets: _Resets, tasks: anyio.abc.TaskGroup, own: str) -> None:
    """One request and its answer; the connection is not kept."""
    connection = h11.Connection(h11.SERVER)
    try:
        while not isinstance(event := connection.next_event(), h11.Request):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive(_RECEIVE_BYTES))
        headers = {name: value.decode("latin-1").lower() for name, value in event.headers}
        if headers.get(b"host") in (own, own.replace("127.0.0.1", "localhost")):
            status, text = await resets.answer(event.method.decode(), event.target.decode().partition("?")[0], tasks)
        else:  # a page that rebinds names
            status, text = HTTPStatus.MISDIRECTED_REQUEST, f"this is {own}"
    except h11.RemoteProtocolError as error:
        status, text = HTTPStatus.BAD_REQUEST, str(error)
    body = text.encode()
    kind = ("Content-Type", "text/plain; charset=utf-8")
    answer = h11.Response(
        status_code=status, headers=[kind, ("Content-Length", str(len(body))), ("Connection", "close")]
    )
    for part in (answer, h11.Data(data=body), h11.EndOfMessage()):
        await stream.send(connection.send(part) or b"")


@contextmanager
def _gone() -> Iterator[None]:
    """Clients may leave when they like."""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        yield
