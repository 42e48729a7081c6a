"""Calls into the world that the engine can walk away from: what ignores its cancellation holds nobody up.

Each runs in a task of its own. Past its deadline, or when its caller is cancelled, it is cancelled, and waited for; one
that does not end then is left to itself as a *straggler*. Whoever asked for it is told, for what the straggler touches
has to be given up. Only the end of the event loop itself waits for it without limit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from statefork.engine.scopes import spawn

R = TypeVar("R")
_logger = logging.getLogger(__name__)


class Late(Exception):
    """It was not done at its deadline. ``joined``: whether it has ended since; else it is a straggler."""

    def __init__(self, *, joined: bool) -> None:
        super().__init__()
        self.joined = joined


class _Call(Generic[R]):
    """One call, its scope, and what came of it."""

    def __init__(self, name: str, work: Callable[[], Awaitable[R]]) -> None:
        self.name = name
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self._work = work
        self._value: list[R] = []
        self._error: BaseException | None = None

    async def run(self) -> None:
        try:
            with self.scope:
                self._value.append(await self._work())
        except anyio.get_cancelled_exc_class():  # the event loop ends
            raise
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> R:
        """What it returned. Raises what it raised, and Late where it did neither."""
        if self._error is not None:
            raise self._error
        if not self._value:
            raise Late(joined=self.ended.is_set())
        return self._value[0]


class Attempts:
    """The calls of one engine. ``join_s``: how long one may take to end once it was cancelled, in seconds."""

    def __init__(self, join_s: float) -> None:
        self._join_s = join_s
        self._stragglers: set[_Call[Any]] = set()

    async def run(
        self, name: str, work: Callable[[], Awaitable[R]], *, deadline_s: float, abandoned: Callable[[], None]
    ) -> R:
        """What ``work`` returns. ``abandoned`` is called where it had to be left to itself.

        Raises what it raises, and Late when it was not done in time.
        """
        call = _Call(name, work)
        spawn(call.run, name)
        try:
            with anyio.move_on_after(deadline_s):
                await call.ended.wait()
        finally:
            if not call.ended.is_set():
                await self._give_up(call, abandoned)
        return call.result()

    async def _give_up(self, call: _Call[R], abandoned: Callable[[], None]) -> None:
        call.scope.cancel()
        try:
            with anyio.move_on_after(self._join_s, shield=True):
                await call.ended.wait()
        finally:  # asyncio's own cancellation goes through shields
            if not call.ended.is_set():
                _logger.error("%s does not end, %g s after it was cancelled", call.name, self._join_s)
                self._stragglers = {one for one in self._stragglers if not one.ended.is_set()}
                self._stragglers.add(call)
                abandoned()

    async def join(self, within_s: float) -> None:
        """At the end: wait for the stragglers, which may have ended with their runtimes."""
        with anyio.move_on_after(within_s, shield=True):
            for call in tuple(self._stragglers):
                await call.ended.wait()
        for call in self._stragglers:
            if not call.ended.is_set():
                _logger.error("%s still does not end, and is left to the end of the event loop", call.name)
