"""What a disk may hold after the power went: a real journal's two files, taken at every point of sync.

SQLite forces the log to the disk before a commit is reported, and the main file before it begins the log anew. So
between two points of sync only bytes change that nobody has been promised: whatever part of them the disk has, what was
acknowledged before must be there, and nothing that is neither.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import anyio

from statefork.journal.batch import Entry, prepare
from statefork.journal.codec import Codec
from statefork.journal.conformance import assert_sound, to
from statefork.journal.errors import JournalError
from statefork.journal.events import RequestRefused
from statefork.journal.limits import Limits
from statefork.journal.log import Append, Recorded
from statefork.journal.reading import _open
from statefork.journal.schema import VIEWS
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.writer import Writer

SECTOR_BYTES = 512
PAGE_BYTES = 512
"""The smallest that SQLite has, so that few bytes are many pages."""


class Files(NamedTuple):
    """A journal's bytes on disk, and what had been acknowledged by then."""

    main: bytes
    log: bytes
    said: tuple[str, ...]

    def lay(self, path: Path) -> None:
        """Put them there, as after a crash: without the index of the log, which is no file but shared memory."""
        _put(path, self.main)
        _put(path.with_name(path.name + "-wal"), self.log)
        path.with_name(path.name + "-shm").unlink(missing_ok=True)


class Story(NamedTuple):
    """The files after each commit, in order, and after the log was copied into the main file in between."""

    commits: list[Files]
    copied: Files  # the same events as in the commit before, now in both files

    @property
    def last(self) -> Files:
        """As it ended."""
        return self.commits[-1]


def made(folder: Path, *, before: int, after: int, page_bytes: int = PAGE_BYTES) -> Story:
    """A journal with so many commits, each of a rider and two streams, before the log is begun anew and after it.

    It has no views: they would make every opening slower, and tear like anything else.
    """
    with patch.dict(VIEWS, clear=True):
        return _made(folder / "journal.sqlite3", before, after, page_bytes)


def _made(path: Path, before: int, after: int, page_bytes: int) -> Story:
    with sqlite3.connect(path) as empty:
        empty.execute(f"PRAGMA page_size = {page_bytes}")
        empty.execute("VACUUM")
    empty.close()

    async def create() -> None:
        async with open_sqlite_journal(path, lock=False) as journal:
            await journal.append(to("env/a", "first"))

    anyio.run(create, backend="asyncio")
    writer = Writer(path, sync_blobs=lambda: None, before_commit=lambda: None)
    said = ["first"]
    commits = [taken(path, said)]

    def commit(number: int) -> None:
        appends = [to("env/a", f"{number} " + "x" * (number % 7 * 40))]
        if number % 2 == 0:  # every other commit has more in it
            appends += [to(f"env/{number}", f"other {number}")]
            rider = to("act/a", f"rider {number}")
            writer.commit([_entry([rider], durable=False), _entry(appends, durable=True)])
            appends.insert(0, rider)
        else:
            writer.commit([_entry(appends, durable=True)])
        said.extend(event.url for one in appends for event in one.events if isinstance(event, RequestRefused))
        commits.append(taken(path, said))

    for number in range(before):
        commit(number)
    writer._uncopied_bytes = 1 << 40
    writer.tidy()
    copied = taken(path, said)
    for number in range(before, before + after):
        commit(number)
    writer.close()
    return Story(commits, copied)


def read(path: Path) -> tuple[list[Recorded], JournalError | None]:
    """What opens: the events up to the end or to damage."""
    found: list[Recorded] = []
    try:
        with ExitStack() as stack:
            file = _open(path, stack)._file
            chain = file.chain()
            while True:
                chunk = file.chunk(found[-1].position if found else 0, None, 512, chain)
                found += chunk.events
                chain.tails |= chunk.tails
                if chunk.error is not None or chunk.ended:
                    return found, chunk.error
    except JournalError as error:
        return found, error


def said(events: list[Recorded]) -> tuple[str, ...]:
    """What the notes say."""
    return tuple(recorded.event.url for recorded in events if isinstance(recorded.event, RequestRefused))


_sound: list[Recorded] = []  # what was read last and found sound: neighbouring tears often leave the same


def check(path: Path, acknowledged: tuple[str, ...], everything: tuple[str, ...]) -> JournalError | None:
    """What opens must be sound, a beginning of everything that was written, and hold what was acknowledged, unless
    there is an error that says that it does not."""
    found, error = read(path)
    if found != _sound:
        assert_sound(found)
        _sound[:] = found
    there = said(found)
    assert there == everything[: len(there)], "the middle was lost, or there is what nobody wrote"
    if error is None:
        assert len(there) >= len(acknowledged), f"{len(acknowledged) - len(there)} acknowledged events are lost"
    else:
        assert error.hint
        assert error.code in ("journal_corrupt", "state_missing")
    return error


def mixtures(before: Files, after: Files, count: int, chance: random.Random) -> Iterator[Files]:
    """What the disk may have of the writes between two points of sync: any of their sectors, any of their length."""
    for _ in range(count):
        share = chance.random()
        yield Files(
            _mixed(before.main, after.main, share, chance), _mixed(before.log, after.log, share, chance), before.said
        )


def _mixed(old: bytes, new: bytes, share: float, chance: random.Random) -> bytes:
    if old == new:
        return old
    size = chance.choice([len(old), len(new), chance.randint(min(len(old), len(new)), max(len(old), len(new)))])
    mixed = bytearray(old.ljust(size, b"\0")[:size])
    for start in range(0, min(size, len(new)), SECTOR_BYTES):
        if chance.random() < share:
            some = new[start : min(start + SECTOR_BYTES, size)]
            mixed[start : start + len(some)] = some
    return bytes(mixed)


def _put(path: Path, data: bytes) -> None:
    """In place: emptying a file first, thousands of times, takes some file systems long."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _entry(appends: Sequence[Append], *, durable: bool) -> Entry:
    return prepare(appends, Codec(), Limits(), durable=durable)


def taken(path: Path, said: Sequence[str]) -> Files:
    """The files as they are now."""
    log = path.with_name(path.name + "-wal")
    return Files(path.read_bytes(), log.read_bytes() if log.exists() else b"", tuple(said))
