"""The application: routes and what stands before them. It runs under any ASGI server, on trio and on asyncio."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, cast

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Address
from starlette.types import ASGIApp, Receive, Scope, Send

from statefork.adapters.interfaces.http.asking import Endpoint, answering, verb_endpoint
from statefork.adapters.interfaces.http.events import Streams
from statefork.adapters.interfaces.http.guard import App, Guard
from statefork.adapters.interfaces.http.looking import Looking
from statefork.adapters.interfaces.http.metrics import Measured, Metrics
from statefork.adapters.interfaces.http.openapi import document
from statefork.adapters.interfaces.http.problems import UsageError
from statefork.adapters.interfaces.http.replies import json_response, problem_response
from statefork.adapters.interfaces.http.routes import EXPORT, IMPORT, ROUTES
from statefork.adapters.interfaces.http.sandboxes import Sandboxes
from statefork.adapters.interfaces.http.transfers import Transfers
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import JournalUnavailable

_log = logging.getLogger(__name__)
_NOT_FOUND = 404
_CHARS_TOLD = 100


class Api:
    """The interface of one engine. Called as an ASGI application; ``run`` does what goes on beside the requests.

    ``token``: what requests have to bear. ``names``: by which names this address may be asked, beside its number and
    ``localhost``. ``journal``: the journal's address, where it is in a database.
    """

    def __init__(self, engine: Engine, *, token: str, names: Collection[str] = (), journal: str | None = None) -> None:
        self._engine = engine
        self._sandboxes = Sandboxes(engine)
        streams = Streams(engine)
        self._metrics = Metrics(engine, streams)
        looking, transfers = Looking(engine, journal), Transfers(engine)
        self._document: dict[str, Any] | None = None
        others: list[tuple[str, str, Endpoint]] = [
            ("GET", "/v1/environments", looking.environments),
            ("GET", "/v1/moments/{ref}", looking.moment),
            ("GET", "/v1/log", looking.log),
            ("GET", "/v1/blobs/{digest}", looking.blob),
            ("POST", "/v1/audits", looking.audit),
            (EXPORT.method, EXPORT.path, transfers.export),
            (IMPORT.method, IMPORT.path, transfers.import_),
            ("POST", "/sandboxes/{id}/fork", self._sandboxes.fork),
            ("GET", "/events", streams.events),
            ("GET", "/metrics", self._metrics.endpoint),
            ("GET", "/openapi.json", self._openapi),
            ("GET", "/health", looking.health),
        ]
        addresses = [(route.method, route.path, verb_endpoint(engine, route)) for route in ROUTES]
        addresses += [(method, path, answering(endpoint)) for method, path, endpoint in others]
        routes: list[Any] = [Address(path, endpoint, methods=[method]) for method, path, endpoint in addresses]
        starlette = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
        guarded = Guard(cast(App, starlette), token=token, names=names)
        self._app: ASGIApp = Drained(Measured(cast(ASGIApp, guarded), self._metrics, routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def run(self) -> None:
        """Count what is journaled, and retire sandboxes that have had their time, until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sandboxes.run)
            tasks.start_soon(self._follow)

    async def _follow(self) -> None:
        journal = self._engine.journal
        try:
            async with journal.subscribe(after=await journal.head()) as feed:
                async for recorded in feed:
                    self._metrics.count(recorded)
        except JournalUnavailable:
            _log.warning("the journal can't be followed any more, so its events are not counted")

    async def _openapi(self, request: Request) -> Response:
        if self._document is None:
            self._document = document()
        return json_response(self._document)


async def no_route(request: Request, error: Exception) -> Response:
    """What Starlette refuses, in the form of all errors, with its own status and headers."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:_CHARS_TOLD]
    said = f"there is no address {path!r}" if error.status_code == _NOT_FOUND else f"{error.detail}: {path!r}"
    response = problem_response(UsageError(f"{request.method}: {said}", hint="See /openapi.json"), error.status_code)
    response.headers.update(error.headers or {})
    return response


class Drained:
    """Reads on while a request is answered before its end, so that neither side waits for the other for ever."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        whole = False

        async def hear() -> Any:
            nonlocal whole
            message = await receive()
            whole = whole or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def drain() -> None:
            while not whole:
                await hear()

        async def tell(message: Any) -> None:
            if whole or message.get("more_body", False) or message["type"] != "http.response.body":
                await send(message)
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain)
                await send(message)
                tasks.cancel_scope.cancel()

        await self._app(scope, hear, tell)
