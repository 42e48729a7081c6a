"""Serving the control door: HTTP on a Unix socket that only its owner may open."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec

from statefork.adapters.interfaces.accepting import accept_each
from statefork.adapters.interfaces.control.address import socket_address, socket_path
from statefork.adapters.interfaces.control.connection import Answer, Asked, Connection
from statefork.adapters.interfaces.control.protocol import error_object
from statefork.adapters.interfaces.control.verbs import VERBS, Verb, lent
from statefork.adapters.interfaces.gateway.refusals import Refused
from statefork.adapters.interfaces.gateway.wire import Gone
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import BlobMissing, StateforkError
from statefork.journal.lock import tell_closing

_log = logging.getLogger(__name__)

BACKLOG = 1024
GRACE_S = 5.0
"""How long requests under way may go on when the door closes."""

_BLOBS = "/v1/blobs/"
_VERBS = "/v1/"
_PATH_CHARS_TOLD = 100


class _Door:
    """Who is connected, and what they get."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connections: set[Connection] = set()
        self.closing = anyio.Event()

    async def run(self, listener: anyio.abc.SocketListener) -> None:
        """Serve until it is closing; then requests under way end, and where closing is hurried they are cut off."""
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as connections:
                tasks.start_soon(self._cut_off, connections.cancel_scope)
                async with anyio.create_task_group() as accepting:
                    accepting.start_soon(accept_each, listener, self._serve, connections)
                    await self.closing.wait()
                    accepting.cancel_scope.cancel()
                await listener.aclose()
                for connection in self._connections:
                    connection.leave()
                connections.cancel_scope.deadline = anyio.current_time() + GRACE_S
            tasks.cancel_scope.cancel()

    async def _cut_off(self, scope: anyio.CancelScope) -> None:
        await self._engine.kernel.hurried()
        scope.cancel()

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        connection = Connection(stream, self._answer, _refusal)
        self._connections.add(connection)
        if self.closing.is_set():  # accepted in the last moment
            connection.leave()
        try:
            await connection.serve()
        except Exception:  # noqa: BLE001 -- logged with its traceback; one connection must not end the engine
            _log.exception("a connection of the control door failed")
        finally:
            for env in connection.lent:
                await self._engine.take_back(env)
            self._connections.discard(connection)

    async def _answer(self, connection: Connection, asked: Asked) -> Answer:
        if asked.method == "GET" and asked.path.startswith(_BLOBS):
            return await self._blob(asked.path.removeprefix(_BLOBS))
        verb = VERBS.get(asked.path.removeprefix(_VERBS)) if asked.path.startswith(_VERBS) else None
        if verb is None:
            return _error(HTTPStatus.NOT_FOUND, "usage", f"there is no verb {asked.path[:_PATH_CHARS_TOLD]!r}")
        if asked.method != "POST":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED, "usage", f"{asked.path} is asked with POST")
        try:
            request = msgspec.json.decode(asked.body or b"{}", type=verb.request)
        except msgspec.DecodeError as error:
            return _error(HTTPStatus.BAD_REQUEST, "usage", str(error))
        try:
            return _json(HTTPStatus.OK, await self._done(connection, verb, request))
        except Gone:
            raise
        except StateforkError as error:
            return _json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": error_object(error)})
        except Exception as error:  # noqa: BLE001 -- the asker learns of it, the engine serves on
            _log.exception("%s failed", asked.path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", f"{type(error).__name__}: {error}")

    async def _done(self, connection: Connection, verb: Verb, request: Any) -> dict[str, Any]:
        if verb.lends(request):

            async def lend() -> dict[str, Any]:
                child = await lent(self._engine, request)
                connection.lend(child["env"])  # no checkpoint lies between: it is lent, or not there
                return {"children": [child]}

            return await connection.while_there(lend)
        if verb.ends(request):
            return await connection.while_there(partial(verb.answer, self._engine, request))
        return await verb.answer(self._engine, request)

    async def _blob(self, digest: str) -> Answer:
        try:
            data = await anyio.to_thread.run_sync(self._engine.blobs.get, digest)
        except BlobMissing as error:
            return _json(HTTPStatus.NOT_FOUND, {"error": error_object(error)})
        return Answer(HTTPStatus.OK, data, "application/octet-stream")


def _refusal(refused: Refused) -> Answer:
    return _error(refused.status, refused.code, refused.message)


def _error(status: int, code: str, message: str) -> Answer:
    return _json(status, {"error": {"code": code, "message": message, "hint": "", "facts": {}}})


def _json(status: int, value: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(value, default=str).encode())


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
    door = _Door(engine)
    async with await anyio.abc.SocketListener.from_socket(_listen(engine.state)) as listener:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(door.run, listener)
                try:
                    yield path
                finally:
                    tell_closing(engine.state)
                    door.closing.set()
        finally:
            path.unlink(missing_ok=True)
