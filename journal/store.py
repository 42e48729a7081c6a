"""Opening a state directory: its lock, its journal and its blobs together. What the other rooms use."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple, overload

from anyio.to_thread import run_sync

from statefork.journal.blobs import BlobReader, BlobStore
from statefork.journal.errors import StateForeign
from statefork.journal.limits import Limits
from statefork.journal.lock import StateLock
from statefork.journal.reading import SqliteReader, open_sqlite_reader
from statefork.journal.sqlite import SqliteJournal, open_sqlite_journal

JOURNAL_NAME = "journal.sqlite3"
BLOBS_NAME = "blobs"
# What a state directory may hold before its journal is there: made for it, or left of an opening that was cut short.
_OURS = frozenset({"lock", BLOBS_NAME, "worlds", "resources", "runtimes", "logs", "control.sock", "screenshots"})
_NOBODYS = frozenset({".gitignore", ".gitkeep", ".DS_Store", "lost+found"})


class State(NamedTuple):
    """A state directory that this process alone may write."""

    path: Path  # absolute
    journal: SqliteJournal
    blobs: BlobStore


class StateView(NamedTuple):
    """A state directory to read, whoever else reads or writes it."""

    path: Path  # absolute
    journal: SqliteReader
    blobs: BlobReader


@overload
def open_state(
    path: str | os.PathLike[str], *, write: Literal[True], limits: Limits | None = None
) -> AbstractAsyncContextManager[State]: ...


@overload
def open_state(path: str | os.PathLike[str], *, write: Literal[False]) -> AbstractAsyncContextManager[StateView]: ...


def open_state(
    path: str | os.PathLike[str], *, write: bool, limits: Limits | None = None
) -> AbstractAsyncContextManager[State | StateView]:
    """Open a state directory.

    For writing it is made where it is missing; StateLocked names the process that has it open already, and
    StateForeign what lies there of somebody else's. For reading nothing is made or changed, and StateMissing says that
    there is nothing. Both may raise JournalCorrupt and JournalUnavailable.
    """
    state = Path(path).absolute()
    return _writing(state, limits) if write else _reading(state)


@asynccontextmanager
async def _writing(state: Path, limits: Limits | None) -> AsyncIterator[State]:
    _check_ours(state)
    with StateLock(state):
        blobs = await run_sync(BlobStore, state / BLOBS_NAME)
        path = state / JOURNAL_NAME
        async with open_sqlite_journal(
            path, limits=limits, sync_blobs=blobs.sync, blobs_wait=blobs.wait, lock=False
        ) as journal:
            yield State(state, journal, blobs)


def _check_ours(state: Path) -> None:
    """Refuse a directory that is somebody else's: a mistyped path must not fill a home or a project with our files."""
    try:
        found = {entry.name for entry in state.iterdir()}
    except OSError:
        return  # nothing there, or not to be read: opening it says so
    foreign = sorted(found - _OURS - _NOBODYS)
    if foreign and JOURNAL_NAME not in found:
        raise StateForeign(
            f"{state} has no journal, and is not empty: there is {foreign[0]!r}",
            hint="Choose a directory that is empty or does not exist yet; nothing was changed",
            path=str(state),
        )


@asynccontextmanager
async def _reading(state: Path) -> AsyncIterator[StateView]:
    async with open_sqlite_reader(state / JOURNAL_NAME) as journal:
        yield StateView(state, journal, BlobReader(state / BLOBS_NAME))
