"""Reading a state directory, whether or not an engine runs on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from statefork.adapters.interfaces.cli.options import journal_of
from statefork.journal.store import StateView, open_state

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run the asynchronous part of a command that reads. (On the loop that starts faster; an engine runs on trio.)"""
    return anyio.run(work, backend="asyncio")


@asynccontextmanager
async def view(state: Path) -> AsyncIterator[StateView]:
    """A state directory, to look at. Raises StateMissing, JournalCorrupt, JournalUnavailable."""
    async with open_state(state, write=False, journal=journal_of(state)) as opened:
        yield opened
