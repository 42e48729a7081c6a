"""Exports and imports: the file is sent, in pieces, and lies in a temporary folder meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.control.carrying import exported, imported
from statefork.adapters.interfaces.http.asking import (
    DISCARD_BYTES_MAX,
    asked,
    asked_in_query,
    each_chunk,
    too_large,
    while_there,
)
from statefork.adapters.interfaces.http.names import SENT_FILE, TOLD_HEADER, calling_it
from statefork.adapters.interfaces.http.replies import json_response
from statefork.adapters.interfaces.http.routes import EXPORT, IMPORT
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import StateforkError

IMPORT_BYTES_MAX = 16 * 1024 * 1024 * 1024
_CHUNK_BYTES = 65_536
_NAME = "moment.statefork"


class Transfers:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def export(self, request: Request) -> Response:
        """The file of a moment. Given up when the client goes."""
        others = await asked(request, EXPORT.others)
        folder = Path(tempfile.mkdtemp(prefix="statefork-export-"))
        try:
            asked_for: ask.Export = EXPORT.request({"path": str(folder / _NAME)}, others)
            told = await while_there(request, partial(exported, self._engine, asked_for))
            told["path"] = _NAME
            return _File(folder, {TOLD_HEADER: msgspec.json.encode(told).decode("ascii", "backslashreplace")})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def import_(self, request: Request) -> Response:
        """An environment of the file that is the body."""
        others = asked_in_query(request, IMPORT.others)
        folder = Path(tempfile.mkdtemp(prefix="statefork-import-"))
        path = str(folder / _NAME)
        try:
            size = 0
            with (folder / _NAME).open("wb") as file:

                def take(chunk: bytes) -> None:
                    nonlocal size
                    size += len(chunk)
                    if size <= IMPORT_BYTES_MAX:
                        file.write(chunk)

                await each_chunk(request, take, IMPORT_BYTES_MAX + DISCARD_BYTES_MAX)
            if size > IMPORT_BYTES_MAX:
                raise too_large(IMPORT_BYTES_MAX)
            asked_for: ask.Import = IMPORT.request({"path": path}, others)
            return json_response(await imported(self._engine, asked_for), IMPORT.status)
        except StateforkError as error:
            raise calling_it(error, path, SENT_FILE) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _File(Response):
    """A file that is sent and then removed, together with its folder."""

    def __init__(self, folder: Path, headers: dict[str, str]) -> None:
        self._folder = folder
        super().__init__(headers=headers, media_type="application/octet-stream")
        self.headers["Content-Length"] = str((folder / _NAME).stat().st_size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with await anyio.open_file(self._folder / _NAME, "rb") as file:
                while chunk := await file.read(_CHUNK_BYTES):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
