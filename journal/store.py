"""Opening a state directory: its lock, its journal and its blobs together. What the other rooms use."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from anyio.to_thread import run_sync

from statefork.journal.blobs import BlobReader, BlobStore
from statefork.journal.errors import StateForeign, StateMissing
from statefork.journal.limits import Limits
from statefork.journal.lock import StateLock, identity_of
from statefork.journal.marker import (
    MARKER_NAME,
    check_belongs,
    check_not_elsewhere,
    new_marker,
    read_marker,
    write_marker,
)
from statefork.journal.reading import SqliteReader, open_sqlite_reader
from statefork.journal.sqlite import SqliteJournal, open_sqlite_journal

if TYPE_CHECKING:
    from statefork.journal.postgres import PostgresJournal
    from statefork.journal.postgres_reading import PostgresReader

JOURNAL_NAME = "journal.sqlite3"
BLOBS_NAME = "blobs"
# What a state directory may hold before its journal is there: made for it, or left of an opening that was cut short.
NOTE_PREFIX = ".statefork-"  # of notes that whoever begins a directory leaves there before it is opened
_OURS = frozenset(
    {
        "lock",
        BLOBS_NAME,
        "worlds",
        "resources",
        "runtimes",
        "logs",
        "control.sock",
        "screenshots",
        "store",
        "store.partial",
    }
)
_NOBODYS = frozenset({".gitignore", ".gitkeep", ".DS_Store", "lost+found"})


class State(NamedTuple):
    """A state directory that this process alone may write.

    ``place``: its name in a journal that others may share; empty where the journal is its own.
    """

    path: Path  # absolute
    journal: SqliteJournal | PostgresJournal
    blobs: BlobStore
    place: str = ""

    @property
    def owner(self) -> str:
        """What every handle of this directory bears."""
        return self.place or self.journal.id


class StateView(NamedTuple):
    """A state directory to read, whoever else reads or writes it."""

    path: Path  # absolute
    journal: SqliteReader | PostgresReader
    blobs: BlobReader
    place: str = ""


@overload
def open_state(
    path: str | os.PathLike[str], *, write: Literal[True], limits: Limits | None = None, journal: str | None = None
) -> AbstractAsyncContextManager[State]: ...


@overload
def open_state(
    path: str | os.PathLike[str], *, write: Literal[False], journal: str | None = None
) -> AbstractAsyncContextManager[StateView]: ...


def open_state(
    path: str | os.PathLike[str], *, write: bool, limits: Limits | None = None, journal: str | None = None
) -> AbstractAsyncContextManager[State | StateView]:
    """Open a state directory.

    For writing it is made where it is missing; StateLocked names the process that has it open already, and
    StateForeign what lies there of somebody else's. For reading nothing is made or changed, and StateMissing says that
    there is nothing. ``journal`` is the address of the journal where that is in a database (``postgresql://…``, with
    ``schema=`` for another schema than ``statefork``) and not a file in the directory; several directories may share
    it, on whatever machine, and each keeps to the journal that it began with. Both may raise JournalCorrupt and
    JournalUnavailable.
    """
    state = Path(path).absolute()
    return _writing(state, limits, journal) if write else _reading(state, journal)


@asynccontextmanager
async def _writing(state: Path, limits: Limits | None, address: str | None) -> AsyncIterator[State]:
    check_ours(state)
    with StateLock(state):
        blobs = await run_sync(BlobStore, state / BLOBS_NAME)
        if address is not None:
            async with _in_database(state, limits, blobs, address) as (journal, place):
                yield State(state, journal, blobs, place)
            return
        check_not_elsewhere(state)
        async with open_sqlite_journal(
            state / JOURNAL_NAME, limits=limits, sync_blobs=blobs.sync, blobs_wait=blobs.wait, lock=False
        ) as file:
            yield State(state, file, blobs)


@asynccontextmanager
async def _in_database(
    state: Path, limits: Limits | None, blobs: BlobStore, address: str
) -> AsyncIterator[tuple[PostgresJournal, str]]:
    from statefork.journal.postgres import open_postgres_journal
    from statefork.journal.postgres_link import parse_address

    _check_no_file(state)
    shown = parse_address(address).shown
    marker = read_marker(state)
    if marker is None:
        marker = new_marker(shown)
        await run_sync(write_marker, state, marker)
    async with open_postgres_journal(
        address, limits=limits, sync_blobs=blobs.sync, place=marker.place, lock=identity_of(state)
    ) as journal:
        check_belongs(state, marker, journal.id, shown)
        if not marker.journal:
            await run_sync(write_marker, state, type(marker)(journal=journal.id, place=marker.place, shown=shown))
        yield journal, marker.place


def _check_no_file(state: Path) -> None:
    if (state / JOURNAL_NAME).exists():
        raise StateForeign(
            f"{state} has a journal of its own, the file {JOURNAL_NAME}",
            hint="Open it without the address of a database; nothing was changed",
            path=str(state),
        )


def check_ours(state: Path) -> None:
    """Raise StateForeign for a directory that is somebody else's: a mistyped path must not fill it with our files."""
    try:
        found = {entry.name for entry in state.iterdir()}
    except OSError:
        return  # nothing there, or not to be read: opening it says so
    foreign = sorted(name for name in found - _OURS - _NOBODYS if not name.startswith(NOTE_PREFIX))
    if foreign and not found & {JOURNAL_NAME, MARKER_NAME}:
        raise StateForeign(
            f"{state} has no journal, and is not empty: there is {foreign[0]!r}",
            hint="Choose a directory that is empty or does not exist yet; nothing was changed",
            path=str(state),
        )


@asynccontextmanager
async def _reading(state: Path, address: str | None) -> AsyncIterator[StateView]:
    if address is None:
        check_not_elsewhere(state)
        async with open_sqlite_reader(state / JOURNAL_NAME) as file:
            yield StateView(state, file, BlobReader(state / BLOBS_NAME))
        return
    from statefork.journal.postgres_link import parse_address
    from statefork.journal.postgres_reading import open_postgres_reader

    _check_no_file(state)
    marker = read_marker(state)
    if marker is None:
        raise StateMissing(f"{state} belongs to no journal", hint="Check the path of the state directory")
    where = parse_address(address)
    async with open_postgres_reader(where) as journal:
        check_belongs(state, marker, journal.id, where.shown)
        yield StateView(state, journal, BlobReader(state / BLOBS_NAME), marker.place)
