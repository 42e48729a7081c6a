"""Asking an engine over HTTP, from Python.

::

    with Client("http://127.0.0.1:8642", token=…) as engine:
        engine.create("shop-1")
        engine.act("shop-1", Goto("http://shop.example/"))
        engine.fork("shop-1", n=2)

:class:`AsyncClient` gives the same to be awaited. Errors are the engine's, of the same classes as in its own process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx
import msgspec

from statefork.adapters.interfaces.http.calls import (
    TIMEOUT,
    Call,
    Plain,
    Verbs,
    call_of,
    checked,
    fault_of,
    headers_of,
    in_query,
)
from statefork.adapters.interfaces.http.names import LAST_ID_HEADER, SENT_FILE, TOLD_HEADER, calling_it
from statefork.adapters.interfaces.http.routes import IMPORT
from statefork.journal.errors import StateforkError

__all__ = ["AsyncClient", "Client"]

_DATA = "data: "


def _listening(after: int | None) -> dict[str, str]:
    return {} if after is None else {LAST_ID_HEADER: str(after)}


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """What the engine says of the file that was sent is said of this path."""
    try:
        yield
    except StateforkError as error:
        raise calling_it(error, SENT_FILE, str(path)) from error.__cause__


class Client(Verbs[Plain]):
    """One that waits. ``token`` None: the one in STATEFORK_HTTP_TOKEN."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url
        self._http = httpx.Client(base_url=url, headers=headers_of(token), timeout=TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def send(self, call: Call) -> Plain:
        """Ask, and give the answer. Raises the engine's errors; NoEngine, EngineLost."""
        try:
            response = self._http.request(call.method, call.path, json=call.body, params=call.query)
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error
        plain: Plain = msgspec.json.decode(checked(response).content)
        return plain

    def blob(self, digest: str) -> bytes:
        """The bytes of a blob, such as a screenshot. Raises BlobMissing."""
        try:
            return checked(self._http.get(f"/v1/blobs/{digest}")).content
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error

    def export(self, ref: str, path: str | Path, **options: bool) -> Plain:
        """Write a moment, and all that led to it, into a file here. ``options``: ends, base, secrets."""
        call = call_of("export", {"ref": ref, **options})
        try:
            with self._http.stream(call.method, call.path, json=call.body) as response:
                if not response.is_success:
                    response.read()
                told: Plain = msgspec.json.decode(checked(response).headers[TOLD_HEADER])
                with Path(path).open("wb") as file:
                    file.writelines(response.iter_bytes())
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error
        return {**told, "path": str(path)}

    def import_(self, path: str | Path, name: str | None = None) -> Plain:
        """A new environment of a file that is here."""
        try:
            with Path(path).open("rb") as file:
                query = in_query({"name": name})
                response = self._http.request(IMPORT.method, IMPORT.path, params=query, content=file)
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error
        with _naming(path):
            plain: Plain = msgspec.json.decode(checked(response).content)
        return plain

    def events(self, *, env: str = "", after: int | None = None) -> Iterator[Plain]:
        """The journal as it grows: behind a position, or from now on. Ends with the connection: go on behind the last
        event's ``position``."""
        query = in_query({"env": env})
        try:
            with self._http.stream("GET", "/events", params=query, headers=_listening(after)) as response:
                if not response.is_success:
                    response.read()
                for line in checked(response).iter_lines():
                    if line.startswith(_DATA):
                        yield msgspec.json.decode(line.removeprefix(_DATA))
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error


class AsyncClient(Verbs[Awaitable[Plain]]):
    """One that is awaited, on trio or asyncio. ``token`` None: the one in STATEFORK_HTTP_TOKEN."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url
        self._http = httpx.AsyncClient(base_url=url, headers=headers_of(token), timeout=TIMEOUT, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def send(self, call: Call) -> Plain:
        """Ask, and give the answer. Raises the engine's errors; NoEngine, EngineLost."""
        response = await self._asked(call.method, call.path, json=call.body, params=call.query)
        plain: Plain = msgspec.json.decode(response.content)
        return plain

    async def _asked(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return checked(await self._http.request(method, path, **more))
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error

    async def blob(self, digest: str) -> bytes:
        """The bytes of a blob, such as a screenshot. Raises BlobMissing."""
        return (await self._asked("GET", f"/v1/blobs/{digest}")).content

    async def export(self, ref: str, path: str | Path, **options: bool) -> Plain:
        """Write a moment, and all that led to it, into a file here. ``options``: ends, base, secrets."""
        call = call_of("export", {"ref": ref, **options})
        try:
            async with self._http.stream(call.method, call.path, json=call.body) as response:
                if not response.is_success:
                    await response.aread()
                told: Plain = msgspec.json.decode(checked(response).headers[TOLD_HEADER])
                async with await anyio.open_file(path, "wb") as file:
                    async for chunk in response.aiter_bytes():
                        await file.write(chunk)
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error
        return {**told, "path": str(path)}

    async def import_(self, path: str | Path, name: str | None = None) -> Plain:
        """A new environment of a file that is here."""

        async def pieces() -> AsyncIterator[bytes]:
            async with await anyio.open_file(path, "rb") as file:
                while chunk := await file.read(65_536):
                    yield chunk

        query = in_query({"name": name})
        with _naming(path):
            response = await self._asked(IMPORT.method, IMPORT.path, params=query, content=pieces())
        plain: Plain = msgspec.json.decode(response.content)
        return plain

    async def events(self, *, env: str = "", after: int | None = None) -> AsyncIterator[Plain]:
        """The journal as it grows: behind a position, or from now on. Ends with the connection: go on behind the last
        event's ``position``."""
        query = in_query({"env": env})
        try:
            async with self._http.stream("GET", "/events", params=query, headers=_listening(after)) as response:
                if not response.is_success:
                    await response.aread()
                async for line in checked(response).aiter_lines():
                    if line.startswith(_DATA):
                        yield msgspec.json.decode(line.removeprefix(_DATA))
        except httpx.HTTPError as error:
            raise fault_of(error, self._url) from error
