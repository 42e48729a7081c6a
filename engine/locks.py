"""Locks by name that cost nothing while nobody holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class KeyedLocks:
    """One lock for each name in use. Who waits for a name gets it in the order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[str, _Counted] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """In the body nobody else holds this name."""
        counted = self._locks.get(name)
        if counted is None:
            counted = self._locks[name] = _Counted()
        counted.users += 1
        try:
            async with counted.lock:
                yield
        finally:
            counted.users -= 1
            if not counted.users:
                del self._locks[name]


class _Counted:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0  # who hold it or wait for it
