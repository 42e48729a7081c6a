"""How a task waits for what another thread does, and is woken from there.

An event and a shielded cancel scope of anyio would do the same and cost several times what the rest of an append costs.
So this goes down to the lowest level of each event loop. Whoever waits here waits to the end: a cancellation is
delivered at the task's next checkpoint. (asyncio's own ``Task.cancel`` can't be held back.)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint_if_cancelled, current_token

Spot = Any
"""What to wake: one wait of one task."""


class Parking(Protocol):
    """One event loop. ``post`` may be called from any thread, all else only from the loop's tasks."""

    async def notice(self) -> None:
        """Raise the cancellation, if there is one, without letting others run."""
        ...

    def spot(self) -> Spot:
        """For one wait of the calling task."""
        ...

    async def wait(self, spot: Spot) -> None:
        """Until ``wake(spot)`` is called, which must be later: nothing may be awaited between ``spot`` and this."""
        ...

    async def turn(self) -> None:
        """Let every other task that can run do so once. No cancellation is delivered here."""
        ...

    def wake(self, spot: Spot) -> None:
        """End the wait. Once."""
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call it soon; where the loop has ended, nobody waits any more and nothing happens."""
        ...


def parking() -> Parking:
    """That of the event loop that runs here."""
    token: Any = current_token().native_token
    return TrioParking(token) if hasattr(token, "run_sync_soon") else AsyncioParking(token)


class TrioParking:
    """See :class:`Parking`."""

    def __init__(self, token: Any) -> None:
        from trio import lowlevel  # only where trio runs: others need not pay for loading it

        self._token = token
        self._sleep = lowlevel.wait_task_rescheduled
        self._stay = lambda _: lowlevel.Abort.FAILED
        self.notice = lowlevel.checkpoint_if_cancelled
        self.spot = lowlevel.current_task
        self.turn = lowlevel.cancel_shielded_checkpoint
        self.wake = lowlevel.reschedule

    async def wait(self, spot: Spot) -> None:
        """Until woken."""
        await self._sleep(self._stay)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call it soon."""
        with contextlib.suppress(RuntimeError):  # trio.RunFinishedError
            self._token.run_sync_soon(call)


class AsyncioParking:
    """See :class:`Parking`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.notice = checkpoint_if_cancelled

    def spot(self) -> Spot:
        """For one wait of the calling task."""
        return _Future(self._loop.create_future())

    async def wait(self, spot: Spot) -> None:
        """Until woken. Only a cancellation, which is rare, pays for the scope that holds it back."""
        try:
            await spot.future
        except asyncio.CancelledError:
            if anyio.current_effective_deadline() > -math.inf:
                raise  # no scope is cancelled, so it was Task.cancel
            if not spot.woken:
                spot.future = self._loop.create_future()
                with anyio.CancelScope(shield=True):
                    await spot.future

    async def turn(self) -> None:
        """Let others run once. Only ``Task.cancel`` is delivered."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if anyio.current_effective_deadline() > -math.inf:
                raise

    def wake(self, spot: Spot) -> None:
        """End the wait, if ``Task.cancel`` did not."""
        spot.woken = True
        if not spot.future.done():
            spot.future.set_result(None)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call it soon."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)


class _Future:
    __slots__ = ("future", "woken")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.woken = False
