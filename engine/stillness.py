"""Moments at which an engine's fold is exactly the fold of what its journal was given.

An append is folded when it is answered, in between it is under way; what rides is folded when it is queued. So the fold
stands at a place of the journal whenever nothing is under way: what was queued before is folded, what comes is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

WAIT_S = 1.0
"""How long a cut waits for what is under way. An append whose reply was lost may take much longer: no cut then."""


class Stillness:
    """Who is under way, how many events were given since the last checkpoint, and who waits for either."""

    def __init__(self) -> None:
        self.events = 0
        self._moving = 0
        self._given_up = False
        self._stopped: anyio.Event | None = None  # somebody wants a cut: set when nothing is under way any more
        self._over: anyio.Event | None = None  # set at the end of the cut
        self._goal = 0
        self._reached = anyio.Event()

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Around an append and its folding. Waits while a cut is made."""
        while self._over is not None:
            await self._over.wait()
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            if not self._moving and self._stopped is not None:
                self._stopped.set()

    @asynccontextmanager
    async def cut(self) -> AsyncIterator[bool]:
        """True in the body: nothing is under way, and nothing begins before its end. False: that can't be had now."""
        if self._given_up or self._over is not None:
            yield False
            return
        self._over = anyio.Event()
        try:
            with anyio.move_on_after(WAIT_S):
                while self._moving:
                    self._stopped = anyio.Event()
                    await self._stopped.wait()
            yield not self._moving and not self._given_up
        finally:
            self._stopped = None
            self._over.set()
            self._over = None

    def give_up(self) -> None:
        """The journal may hold what is not folded: there is no cut any more in this run."""
        self._given_up = True

    def count(self, events: int) -> None:
        """So many events were given to the journal."""
        self.events += events
        if self._goal and self.events >= self._goal:
            self._reached.set()

    async def reached(self, events: int) -> None:
        """Return when so many events were given since the last checkpoint."""
        self._goal = events
        while self.events < events:
            self._reached = anyio.Event()
            await self._reached.wait()
