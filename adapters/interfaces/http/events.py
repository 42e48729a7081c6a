"""The journal as server-sent events. Each bears its position, and a client that comes again goes on behind its last."""

from __future__ import annotations

from contextlib import suppress

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statefork.adapters.interfaces.control.protocol import Count
from statefork.adapters.interfaces.http.asking import asked_in_query
from statefork.adapters.interfaces.http.looking import is_about
from statefork.adapters.interfaces.http.names import LAST_ID_HEADER
from statefork.adapters.interfaces.http.problems import UsageError
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import LimitReached
from statefork.journal.errors import JournalUnavailable
from statefork.journal.log import Journal, Recorded

CLIENTS_MAX = 64
BEAT_S = 15.0
"""How often a silent stream says that it is still there, so that whoever is gone is noticed."""


class EventsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events behind a position, of one environment if it is named. ``after`` None: from now on."""

    env: str = ""
    after: Count | None = None


class Streams:
    """The endpoint, and how many listen to it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.listening = 0

    async def events(self, request: Request) -> Response:
        """A stream. Raises LimitReached, UsageError."""
        wanted = asked_in_query(request, EventsAsked)
        after = _last_id(request)
        if after is None:
            after = wanted.after if wanted.after is not None else await self._engine.journal.head()
        if self.listening >= CLIENTS_MAX:
            raise LimitReached.of("event_clients_max", CLIENTS_MAX, "listening to events")
        return _Stream(self, self._engine.journal, wanted.env, after)


def _last_id(request: Request) -> int | None:
    said = request.headers.get(LAST_ID_HEADER)
    if said is None or said == "":
        return None
    if not (said.isascii() and said.isdigit()):
        raise UsageError(f"{LAST_ID_HEADER} is a position in the journal, not {said[:40]!r}")
    return int(said)


def _as_text(recorded: Recorded) -> bytes:
    kind = recorded.event.__struct_config__.tag
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (recorded.position, str(kind).encode(), msgspec.json.encode(recorded))


class _Stream(Response):
    """Goes on until its client is gone, or the engine closes."""

    def __init__(self, streams: Streams, journal: Journal, env: str, after: int) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type="text/event-stream")
        del self.headers["Content-Length"]
        self._streams, self._journal, self._env, self._after = streams, journal, env, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.listening += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._beat, send)
                with suppress(JournalUnavailable):
                    async with self._journal.subscribe(after=self._after) as feed:
                        async for recorded in feed:
                            if is_about(recorded, self._env):
                                await self._say(send, _as_text(recorded))
                tasks.cancel_scope.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.listening -= 1

    async def _say(self, send: Send, text: bytes) -> None:
        await send({"type": "http.response.body", "body": text, "more_body": True})

    async def _beat(self, send: Send) -> None:
        await self._say(send, b": listening\n\n")
        while True:
            await anyio.sleep(BEAT_S)
            await self._say(send, b": still here\n\n")

    async def _until_gone(self, receive: Receive, stream: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.cancel()
