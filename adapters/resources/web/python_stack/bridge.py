"""A request on its way to an ASGI application: a thread of the server waits for what a task on the loop answers.

The task runs in a copy of the request's context, so the binding, its chance and its time are those of the request.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from statefork.adapters.resources.web.bound import BindingEnded, current
from statefork.adapters.resources.web.python_stack.loop import ASGI, ERRAND, AsgiApplication, Errand, Loop

_CHUNK_BYTES = 1 << 16
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-connection"})
_LOOK_AGAIN_S = 0.5  # whether somebody listens still, while the application is silent
_End = BaseException | None


class Conversation:
    """What the task and the thread say to each other about one request."""

    def __init__(self, environ: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._input = environ["wsgi.input"]
        self._left = int(environ.get("CONTENT_LENGTH") or 0)
        self._asked = False
        self._gone: Callable[[], bool] = environ.get("waitress.client_disconnected", lambda: False)
        self._loop = loop
        self._over = asyncio.Event()
        self._taken = asyncio.Event()
        self._said: queue.SimpleQueue[dict[str, Any] | _End] = queue.SimpleQueue()

    # -- the task's side --------------------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        """The body, and after it the end of the conversation."""
        if not self._over.is_set() and (self._left or not self._asked):
            self._asked = True
            data = self._input.read(min(self._left, _CHUNK_BYTES)) if self._left else b""
            self._left = self._left - len(data) if data else 0
            return {"type": "http.request", "body": data, "more_body": self._left > 0}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Hand on; a piece of the body returns when it has been taken. After the end nothing is heard."""
        if self._over.is_set():
            return
        self._said.put(message)
        if message["type"] == "http.response.body" and message.get("more_body"):
            self._taken.clear()
            await self._taken.wait()

    def ended(self, task: asyncio.Future[Any]) -> None:
        """The task is over, in whatever way."""
        self._said.put(asyncio.CancelledError() if task.cancelled() else task.exception())

    # -- the thread's side ------------------------------------------------------------------------------------

    def hear(self, kind: str) -> dict[str, Any] | None:
        """The next message, None when there is none. Raises what the application raised, BindingEnded when cut off."""
        said = self._next()
        if isinstance(said, asyncio.CancelledError):
            raise BindingEnded("the task of this request was cancelled")
        if isinstance(said, BaseException):
            raise said
        if said is not None and said["type"] != kind:
            raise RuntimeError(f"the application sent {said['type']!r} where {kind!r} was due")
        return said

    def _next(self) -> dict[str, Any] | _End:
        while True:
            try:
                return self._said.get(timeout=_LOOK_AGAIN_S)
            except queue.Empty:
                if self._gone():
                    raise ConnectionAbortedError("whoever asked has gone") from None

    def took(self) -> None:
        """The task may send more."""
        self._tell(self._taken)

    def close(self) -> None:
        """The answer is complete, or nobody listens any more."""
        self._tell(self._over, self._taken)

    def _tell(self, *events: asyncio.Event) -> None:
        for event in events:
            self._loop.call_soon_threadsafe(event.set, context=contextvars.Context())


class Body:
    """The pieces of an answer, as they come."""

    def __init__(self, conversation: Conversation, errand: Errand) -> None:
        self._conversation = conversation
        self._errand = errand

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._conversation.hear("http.response.body")) is not None:
            if message.get("body"):
                yield bytes(message["body"])
            if not message.get("more_body"):
                return
            self._conversation.took()
        raise RuntimeError("the application ended in the middle of its answer")

    def close(self) -> None:
        """What the application does from now on is counted for itself."""
        self._conversation.close()
        self._errand.outlive()


class Bridge:
    """The WSGI application that the server runs."""

    def __init__(self, application: AsgiApplication, loop: Loop) -> None:
        self._application = application
        self._loop = loop

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ.get("HTTP_UPGRADE", "").lower() == "websocket":
            start_response("501 Not Implemented", [("Content-Type", "text/plain")])
            return [b"this server carries no WebSockets"]
        loop = self._loop.loop
        errand = Errand(current(), f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}", loop)
        conversation = Conversation(environ, loop)
        context = contextvars.copy_context()
        context.run(ERRAND.set, errand)
        scope = {**make_scope(environ), "state": dict(self._loop.state)}
        loop.call_soon_threadsafe(self._begin, scope, conversation, context)
        body = Body(conversation, errand)
        try:
            message = conversation.hear("http.response.start")
            if message is None:
                raise RuntimeError("the application ended without an answer")
            start_response(_status(int(message["status"])), _headers(message.get("headers", ())))
        except BaseException:
            body.close()
            raise
        return body

    def _begin(self, scope: dict[str, Any], conversation: Conversation, context: contextvars.Context) -> None:
        async def serve() -> None:
            await self._application(scope, conversation.receive, conversation.send)

        task = self._loop.loop.create_task(serve(), context=context)
        task.add_done_callback(conversation.ended, context=contextvars.Context())


def make_scope(environ: dict[str, Any]) -> dict[str, Any]:
    """What an ASGI application is told of a request."""
    path = environ.get("PATH_INFO", "").encode("latin-1")
    raw = environ.get("REQUEST_URI", "").partition("?")[0].encode("latin-1") or path
    names = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
    headers = [
        ((names.get(key) or key.removeprefix("HTTP_").replace("_", "-").lower()).encode(), value.encode("latin-1"))
        for key, value in environ.items()
        if key in names or key.startswith("HTTP_")
    ]
    return {
        "type": "http",
        "asgi": ASGI,
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": path.decode("utf-8", "replace"),
        "raw_path": raw,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "root_path": "",
        "headers": headers,
        "client": (environ.get("REMOTE_ADDR", ""), int(environ.get("REMOTE_PORT") or 0)),
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)),
    }


def _status(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return f"{code} Unknown"


def _headers(given: Any) -> list[tuple[str, str]]:
    decoded = [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in given]
    return [(name, value) for name, value in decoded if name.lower() not in _HOP_BY_HOP]
