"""From a request to an answer: what is read of it, within which bounds, and what becomes of errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from statefork.adapters.interfaces.http.logs import environment
from statefork.adapters.interfaces.http.names import IDEMPOTENCY_HEADER
from statefork.adapters.interfaces.http.problems import BodyTooLarge, InternalError, UsageError
from statefork.adapters.interfaces.http.replies import json_response, problem_response
from statefork.adapters.interfaces.http.routes import Route
from statefork.adapters.interfaces.python import Engine
from statefork.journal.errors import StateforkError

_log = logging.getLogger(__name__)

BODY_BYTES_MAX = 4 * 1024 * 1024
DISCARD_BYTES_MAX = 64 * 1024 * 1024
"""How much of a body that is too long is read, so that its sender gets to hear of it."""
STALL_S = 30.0
"""How long a client may send nothing in the middle of a body."""
CLIENT_GONE = 499
"""The status, for the log and the metrics, where nobody waits for the answer any more."""

Endpoint = Callable[[Request], Awaitable[Response]]
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class Gone(Exception):
    """The client went before it was answered."""


async def body_of(request: Request, most: int = BODY_BYTES_MAX) -> bytes:
    """A request's body. Raises BodyTooLarge, UsageError where it stalls, Gone."""
    body = bytearray()

    def take(chunk: bytes) -> None:
        if len(body) <= most:
            body.extend(chunk)

    size = await each_chunk(request, take, most + DISCARD_BYTES_MAX)
    if size > most:
        raise too_large(most)
    return bytes(body)


def too_large(most: int) -> BodyTooLarge:
    """The error of a body longer than ``most`` bytes."""
    return BodyTooLarge(f"the body is longer than {most} bytes", limit=most)


async def each_chunk(request: Request, take: Callable[[bytes], object], most: int) -> int:
    """Give a body's pieces away; how many bytes it had. Raises BodyTooLarge beyond ``most``, UsageError, Gone."""
    size, more = 0, True
    while more:
        try:
            with anyio.fail_after(STALL_S):
                message = await request.receive()
        except TimeoutError:
            raise UsageError(f"nothing came of the body for {STALL_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise Gone
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise too_large(most)
        take(chunk)
        more = message.get("more_body", False)
    return size


async def asked(request: Request, kind: type[S]) -> S:
    """The body as a value of a type; no body is an empty object. Raises UsageError with the place, BodyTooLarge."""
    body = await body_of(request)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(str(error)) from None
    except RecursionError:
        raise UsageError("the body is nested too deep") from None


def asked_in_query(request: Request, kind: type[S]) -> S:
    """The query as a value of a type. Raises UsageError."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from None


async def while_there(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """What the work gives. It is cancelled when the client goes. Raises Gone then."""
    done: list[T] = []
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_until_gone, request, tasks.cancel_scope)
        try:
            done.append(await work())
        except Exception as error:  # noqa: BLE001 -- raised again below, alone
            failed = error
        tasks.cancel_scope.cancel()
    if done:
        return done[0]
    raise failed or Gone


async def _until_gone(request: Request, work: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.cancel()


def answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with its errors in the one form. What is logged meanwhile bears the environment's name."""

    async def answer(request: Request) -> Response:
        with environment(request.path_params.get("env", "")):
            try:
                return await endpoint(request)
            except Gone:
                return Response(status_code=CLIENT_GONE)
            except StateforkError as error:
                return problem_response(error)
            except Exception as error:  # noqa: BLE001 -- the asker learns of it, the engine serves on
                _log.exception("%s %s failed", request.method, request.url.path)
                return problem_response(InternalError(f"{type(error).__name__}: {error}"))

    return answer


def verb_endpoint(engine: Engine, route: Route) -> Endpoint:
    """What answers a route: the verb of the control door, asked with what the request says."""

    async def answer(request: Request) -> Response:
        others = await asked(request, route.others) if route.has_body else asked_in_query(request, route.others)
        asked_for = request_of(route, request.path_params, with_key(request, route, others))
        work = partial(route.verb.answer, engine, asked_for)
        done = await while_there(request, work) if route.verb.ends(asked_for) else await work()
        return json_response(done, route.status)

    return answering(answer)


def request_of(route: Route, path: Mapping[str, str], others: msgspec.Struct) -> Any:
    """The verb's request. Raises UsageError."""
    try:
        return route.request(path, others)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from None


def with_key(request: Request, route: Route, others: S) -> S:
    """With the key of the header, where the body has none. Raises UsageError where it can't hold, or says two."""
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return others
    if not route.keyed:
        raise UsageError(
            f"{route.verb_name} takes no {IDEMPOTENCY_HEADER}: given again, it is done again",
            hint="Look at the log before you repeat it",
        )
    if getattr(others, "key", key) not in (None, key):
        raise UsageError(f"the header {IDEMPOTENCY_HEADER} says another key than the request")
    return msgspec.structs.replace(others, key=key)
