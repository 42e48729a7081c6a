"""The fork of sandboxes, in the form that clients of E2B's have: a list with one entry for each child, good or bad."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from statefork.adapters.interfaces.control.protocol import AtLeastOne, Timeout
from statefork.adapters.interfaces.control.verbs import described
from statefork.adapters.interfaces.http.asking import asked
from statefork.adapters.interfaces.http.names import IDEMPOTENCY_HEADER
from statefork.adapters.interfaces.http.problems import problem
from statefork.adapters.interfaces.http.replies import json_response
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import PartialFork, TransitionAborted
from statefork.journal.errors import StateforkError
from statefork.journal.values import Json

_log = logging.getLogger(__name__)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """``timeout``: after how many seconds each child is retired by itself; None: never."""

    count: AtLeastOne = 1
    timeout: Timeout | None = None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A child. ``metadata``: what there is to know of it besides. There is no daemon of the other's inside."""

    sandboxID: str  # noqa: N815 -- the other's name
    templateID: str  # noqa: N815 -- the other's name
    clientID: str = "statefork"  # noqa: N815 -- the other's name
    envdVersion: str = "0.0.0"  # noqa: N815 -- the other's name
    metadata: dict[str, Json] = {}


class Forked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One child, or why there is none."""

    sandbox: Sandbox | None = None
    error: dict[str, Json] | None = None


class Sandboxes:
    """The endpoint. ``run`` retires what has had its time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ends: dict[str, float] = {}  # by name, on the event loop's clock
        self._changed = anyio.Event()

    async def fork(self, request: Request) -> Response:
        """Children of the present, or why nothing was begun: errors have the other's form, too."""
        try:
            return await self._forked(request)
        except StateforkError as error:
            return json_response(_error(error), problem(error).status)

    async def _forked(self, request: Request) -> Response:
        """Children of the present; one that failed is told in its place. Raises UnknownEnvironment, LimitReached."""
        name, wanted = request.path_params["id"], await asked(request, Asked)
        born: list[str] = []
        failed: list[StateforkError] = []
        await self._engine.find(name)
        try:
            children = await self._engine.fork(name, n=wanted.count, key=request.headers.get(IDEMPOTENCY_HEADER))
            born = [child.name for child in children]
        except PartialFork as error:
            born, failed = list(error.born), list(error.failed.values())
        except TransitionAborted as error:
            failed = [error] * wanted.count
        if wanted.timeout is not None:
            self._end_at(born, anyio.current_time() + wanted.timeout)
        told = [Forked(sandbox=self._sandbox(child)) for child in born]
        told += [Forked(error=_error(one)) for one in failed]
        return json_response(msgspec.to_builtins(told), 201)

    def _sandbox(self, name: str) -> Sandbox:
        metadata: dict[str, Any] = described(self._engine.environment(name))
        return Sandbox(sandboxID=name, templateID=self._engine.kernel.contract.name, metadata=metadata)

    def _end_at(self, names: list[str], at: float) -> None:
        self._ends |= dict.fromkeys(names, at)
        self._changed.set()
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Retire each child when its time is over. Ends with its task: the children of an engine that ends stay."""
        while True:
            changed, now = self._changed, anyio.current_time()
            for name in [name for name, at in self._ends.items() if at <= now]:
                del self._ends[name]
                try:
                    await self._engine.kernel.retire(name)
                except StateforkError as error:
                    _log.warning("%s has had its time and could not be retired: %s", name, error)
            with anyio.move_on_at(min(self._ends.values(), default=float("inf"))):
                await changed.wait()


def _error(error: StateforkError) -> dict[str, Any]:
    told = problem(error)
    return {"code": told.status, "message": told.detail, "error_code": told.code}
