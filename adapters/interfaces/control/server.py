"""Serving the control door: Starlette on Hypercorn, on a Unix socket that only its owner may open."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import sniffio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statefork.adapters.interfaces.control.address import socket_address, socket_path
from statefork.adapters.interfaces.control.protocol import error_object
from statefork.adapters.interfaces.control.verbs import VERBS
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import BlobMissing, StateforkError

_log = logging.getLogger(__name__)

BACKLOG = 64
GRACE_S = 5.0
"""How long requests under way may go on when the door closes."""

Answer = Callable[[HttpRequest], Awaitable[Response]]


def application(engine: Engine) -> Starlette:
    """The control door as an ASGI application."""

    async def call(request: HttpRequest) -> Response:
        verb = VERBS.get(request.path_params["verb"])
        if verb is None:
            return _error(404, "usage", f"there is no verb {request.path_params['verb']!r}")
        try:
            asked = msgspec.json.decode(await request.body() or b"{}", type=verb.request)
        except msgspec.DecodeError as error:
            return _error(400, "usage", str(error))
        try:
            return JSONResponse(await verb.answer(engine, asked))
        except StateforkError as error:
            return JSONResponse({"error": error_object(error)}, status_code=422)
        except Exception as error:  # noqa: BLE001 -- the asker learns of it, the engine serves on
            _log.exception("%s failed", request.path_params["verb"])
            return _error(500, "internal", f"{type(error).__name__}: {error}")

    async def blob(request: HttpRequest) -> Response:
        try:
            data = await anyio.to_thread.run_sync(engine.blobs.get, request.path_params["digest"])
        except BlobMissing as error:
            return JSONResponse({"error": error_object(error)}, status_code=404)
        return Response(data, media_type="application/octet-stream")

    routes = [Route("/v1/blobs/{digest}", blob), Route("/v1/{verb}", call, methods=["POST"])]
    return Starlette(routes=routes)


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "hint": "", "facts": {}}}, status_code=status)


def _listen(state: Path) -> socket.socket:
    """A listening socket in the state directory. Whoever holds the directory's lock owns the name, so a left-over of
    a killed engine is removed."""
    socket_path(state).unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(door.fileno(), 0o600)  # before the name exists, so that nobody else gets in between
        with socket_address(state) as address:
            door.bind(address)
        socket_path(state).chmod(0o600)
        door.listen(BACKLOG)
    except BaseException:
        door.close()
        raise
    return door


@asynccontextmanager
async def serve_control(engine: Engine) -> AsyncIterator[Path]:
    """Serve the control door while the context is open; gives the socket's path."""
    path = socket_path(engine.state)
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = GRACE_S
    closed = anyio.Event()
    with closing(_listen(engine.state)) as door:
        config.bind = [f"fd://{os.dup(door.fileno())}"]
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_serve_until, engine, config, closed.wait)
                try:
                    yield path
                finally:
                    closed.set()
        finally:
            path.unlink(missing_ok=True)


async def _serve_until(engine: Engine, config: Config, until: Callable[[], Awaitable[Any]]) -> None:
    """Serve, and let requests under way end; where closing is hurried they are cut off."""

    async def cut_off() -> None:
        await engine.kernel.hurried()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cut_off)
        await _serve(application(engine), config, until)
        tasks.cancel_scope.cancel()


async def _serve(app: Any, config: Config, until: Callable[[], Awaitable[Any]]) -> None:
    if sniffio.current_async_library() == "trio":
        from hypercorn.trio import serve as serve_trio

        await serve_trio(app, config, shutdown_trigger=until)
    else:
        from hypercorn.asyncio import serve as serve_asyncio

        await serve_asyncio(app, config, shutdown_trigger=until)
