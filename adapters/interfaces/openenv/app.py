"""The application that agents reach: ``WS /ws``, and what tells of it. No verb of an operator has an address here."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Any, cast

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from statefork.adapters.interfaces.http.app import Drained, no_route
from statefork.adapters.interfaces.http.asking import answering, body_of
from statefork.adapters.interfaces.http.guard import App, Guard
from statefork.adapters.interfaces.http.replies import json_response
from statefork.adapters.interfaces.openenv.beginning import Beginning
from statefork.adapters.interfaces.openenv.messages import Observation, State, error_message, fault_message, no_tools
from statefork.adapters.interfaces.openenv.session import Judge, Session
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import StateforkError

SESSIONS_MAX = 8
IDLE_S = 900.0
"""How long a client may say nothing before its episode is over: who is gone without a word holds no place for ever."""

FIRST_WORD_S = 60.0
"""For how long one for whom there is no room may say nothing before he is told so and the connection is closed."""
TURNED_AWAY_MAX = 64
"""How many of those may wait at once; one more is told so at once."""


class OpenEnv:
    """Called as an ASGI application.

    ``begin``: the moment that each episode begins with; None: the origin of an environment that is made for this.
    ``sessions``: how many clients there may be at once. ``judge``: what gives rewards, and ends episodes.
    ``act_timeout_s``: how long an action may take; None: as the engine's settings say. ``names``: as for HTTP.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        begin: str | None = None,
        sessions: int = SESSIONS_MAX,
        judge: Judge | None = None,
        act_timeout_s: float | None = None,
        names: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self._beginning = Beginning(engine, begin)
        self._most = sessions
        self._judge = judge
        self._act_timeout_s = act_timeout_s
        self._there = self._turned_away = 0
        routes = [
            WebSocketRoute("/ws", self._connected),
            Route("/health", self._health, methods=["GET"]),
            Route("/metadata", self._metadata, methods=["GET"]),
            Route("/schema", self._schema, methods=["GET"]),
            Route("/mcp", answering(self._mcp), methods=["POST"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        starlette = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
        self._app: ASGIApp = Drained(cast(ASGIApp, Guard(cast(App, starlette), token=None, names=names)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def try_out(self) -> None:
        """Raise what the first episode would meet where ``begin`` is named: UnknownEnvironment, UnknownRef, Diverged,
        and TransitionAborted where it can't be forked any more."""
        await self._beginning.try_out()

    async def _connected(self, socket: WebSocket) -> None:
        await socket.accept()
        if self._there >= self._most:
            await self._turn_away(socket)
            return
        self._there += 1
        session = Session(self._engine, self._beginning, self._judge, self._act_timeout_s)
        try:
            await self._converse(socket, session)
        finally:
            self._there -= 1
            await session.end()

    async def _turn_away(self, socket: WebSocket) -> None:
        """Say that there is no room as the answer to what is said first: whoever connects, and asks only later, would
        otherwise find no more than a connection that was closed."""
        counts = {"active_sessions": self._there, "max_sessions": self._most}
        if self._turned_away < TURNED_AWAY_MAX:
            self._turned_away += 1
            try:
                with anyio.move_on_after(FIRST_WORD_S):
                    if (await socket.receive())["type"] == "websocket.disconnect":
                        return
            finally:
                self._turned_away -= 1
        await _say(socket, error_message("CAPACITY_REACHED", f"{self._most} sessions are there already", **counts))
        await socket.close()

    async def _converse(self, socket: WebSocket, session: Session) -> None:
        try:
            self._beginning.check()
        except StateforkError as error:
            await _say(socket, fault_message("FACTORY_ERROR", error))
            await socket.close()
            return
        while socket.client_state is WebSocketState.CONNECTED:
            with anyio.move_on_after(IDLE_S) as patience:
                message = await socket.receive()
            if patience.cancelled_caught:
                await _say(socket, error_message("SESSION_ERROR", f"nothing was said for {IDLE_S:g} s"))
                break
            if message["type"] == "websocket.disconnect":
                return
            said = message.get("text")
            answer = await session.answer(message["bytes"] if said is None else said)
            if answer is None:
                break
            await _say(socket, answer)
        await socket.close()

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "healthy"})

    async def _metadata(self, request: Request) -> Response:
        contract = self._engine.kernel.contract.name
        about = f"The world {contract!r} of statefork: a fork of it for each episode"
        return json_response({"name": contract, "description": about, "version": version("statefork")})

    async def _schema(self, request: Request) -> Response:
        kinds: dict[str, Any] = {"observation": msgspec.json.schema(Observation), "state": msgspec.json.schema(State)}
        action = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
        return json_response({"action": action, **kinds})

    async def _mcp(self, request: Request) -> Response:
        return json_response(no_tools(await body_of(request)))

    async def _openapi(self, request: Request) -> Response:
        """What has an address, but the WebSocket, which such a document has no words for."""
        answer = {"200": {"description": "An object.", "content": {"application/json": {"schema": {"type": "object"}}}}}
        gets = {
            "/health": "Whether it answers",
            "/metadata": "What world it is",
            "/schema": "The forms of actions, observations and states",
        }
        paths: dict[str, Any] = {path: {"get": {"summary": about, "responses": answer}} for path, about in gets.items()}
        paths["/mcp"] = {"post": {"summary": "JSON-RPC; no tools are offered", "responses": answer}}
        info = {"title": "statefork: episodes, at /ws in OpenEnv's protocol", "version": version("statefork")}
        return json_response({"openapi": "3.1.0", "info": info, "paths": paths})


async def _say(socket: WebSocket, message: dict[str, Any]) -> None:
    await socket.send_text(msgspec.json.encode(message).decode())
