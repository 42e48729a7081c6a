"""Following a journal: from any position, through the past, into the present.

A subscriber never gets events from the writer's hands. It reads what is committed, and where that ends it sleeps until
the head moves. So nothing can be missed or come twice, a slow subscriber holds nobody up, and no buffer grows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from statefork.journal.limits import Limits, check_limit
from statefork.journal.log import Recorded


class Feed:
    """Where a journal's committed head is, and who sleeps until it moves. Used on the event loop only."""

    def __init__(self, head: int, limits: Limits) -> None:
        self.head = head
        self._limits = limits
        self._subscribers = 0
        self.closed = False
        self._moved: anyio.Event | None = None

    def advance(self, head: int) -> None:
        """The head moved: wake all."""
        if head > self.head:
            self.head = head
            self._wake()

    def close(self) -> None:
        """There will be no more: subscribers end when they have read everything."""
        self.closed = True
        self._wake()

    async def moved(self, past: int) -> bool:
        """Wait until the head is past a position; False when that will never be."""
        while self.head <= past:
            if self.closed:
                return False
            if self._moved is None:  # made only for who waits: an event costs as much as encoding and hashing one
                self._moved = anyio.Event()
            await self._moved.wait()
        return True

    def _wake(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    @asynccontextmanager
    async def follow(
        self, read: Callable[[int], AsyncIterator[Recorded]], after: int
    ) -> AsyncIterator[AsyncIterator[Recorded]]:
        """``read(after)`` again and again, with waiting in between. Raises LimitExceeded."""
        maximum, hint = self._limits.subscribers_max, "Share one subscription, or end some"
        check_limit("subscribers_max", self._subscribers + 1, maximum, "Subscribers of the journal", hint)
        self._subscribers += 1
        try:
            yield Following(self, read, after)
        finally:
            self._subscribers -= 1


class Following:
    """One subscriber's place. Ends when the journal is closed and everything has been read."""

    def __init__(self, feed: Feed, read: Callable[[int], AsyncIterator[Recorded]], after: int) -> None:
        self._feed = feed
        self._read = read
        self._after = after
        self._scan: AsyncIterator[Recorded] | None = None

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Recorded:
        while True:
            if self._scan is None:
                if not await self._feed.moved(self._after):
                    raise StopAsyncIteration
                self._scan = self._read(self._after)
            try:
                recorded = await anext(self._scan)
            except StopAsyncIteration:
                self._scan = None
                continue
            self._after = recorded.position
            return recorded
