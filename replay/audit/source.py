"""Raw rows out of a journal file, read only: an engine may be writing to it meanwhile.

Only the file's two tables are known here: ``events`` (position, stream, version, event, hash) and ``streams`` (the head
of each stream, by which an end that was cut off is seen).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from statefork.journal.errors import JournalError
from statefork.journal.marker import MARKER_NAME, check_belongs, check_not_elsewhere, read_marker
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row

JOURNAL_FILE = "journal.sqlite3"
_BUSY_SECONDS = 10.0
_COLUMNS = "position, stream, version, cast(event as blob), hash"
_ROWS = f"select {_COLUMNS} from events where position > ? order by position limit ?"
_BEHIND = "select 1 from events where stream = ? and position > ? limit 1"
EVERY = -1  # no limit
_HEADS = "select stream, version, hash from streams"


class Source(Protocol):
    """Raw rows of one journal, wherever it is, as of one moment."""

    head: int

    def look_away(self) -> None:
        """Until ``look_again``: an open look is in the writer's way."""
        ...

    def look_again(self) -> None:
        """From now on see what was appended meanwhile."""
        ...

    def rows(self, after: int = 0, count: int = EVERY) -> Generator[Row, None, None]:
        """The events behind a position, in position order. To be closed before the source is. Raises Unreadable."""
        ...

    def heads(self) -> Generator[tuple[str, int, str], None, None]:
        """The head that is kept of every stream: name, version, hash. To be closed before the source is."""
        ...

    def moved_on(self, env: str, position: int) -> bool:
        """Whether by now anything is journaled of an environment's lifecycle behind a position, seen in rows or not.

        True where that can't be read.
        """
        ...

    def close(self) -> None:
        """End the look."""
        ...


def open_source(state: Path, journal: str | None) -> Source:
    """The journal of a state directory; ``journal`` is its address, where it is in a database.

    Raises Unreadable, also where the directory belongs to another journal.
    """
    if journal is None:
        try:
            check_not_elsewhere(state)
        except JournalError as error:
            raise Unreadable(str(error)) from None
        return JournalFile(state / JOURNAL_FILE)
    from statefork.replay.audit.tables import JournalTables  # only there the driver is needed

    with ExitStack() as stack:
        tables = stack.enter_context(closing(JournalTables(journal)))
        try:
            marker = read_marker(state)
            if marker is None:
                raise Unreadable(f"{state} belongs to no journal in a database: it has no {MARKER_NAME}")
            if found := tables.journal():  # a journal without events is nobody's yet
                check_belongs(state, marker, found, tables.shown)
        except JournalError as error:
            raise Unreadable(str(error)) from None
        stack.pop_all()
    return tables


class JournalFile:
    """One journal file, opened for one consistent look: what is appended later is not seen until ``look_again``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        path = self._path
        try:
            with path.open("rb"), ExitStack() as stack:
                self._connection = connected(path, stack)
                stack.callback(self._connection.close)
                self._alone = not _index(path).exists()
                self.head = self._begin()
                self._stack = stack.pop_all()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise Unreadable(f"there is no journal at {path}") from None
        except OSError as error:
            raise Unreadable(f"{error.filename or path} can't be read: {error.strerror}") from None
        except sqlite3.Error as error:
            raise Unreadable(f"{path} is not a statefork journal, or its header is damaged ({error})") from None

    def _begin(self) -> int:
        self._connection.execute("begin")
        found = self._connection.execute("select coalesce(max(position), 0) from events").fetchone()
        return int(found[0])

    def look_away(self) -> None:
        """Until ``look_again``: an open look keeps the writer from shortening its log. Idempotent."""
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    def look_again(self) -> None:
        """From now on see what was appended meanwhile."""
        try:
            self.look_away()
            if self._alone and _index(self._path).exists():  # an engine opens what nobody had open
                self.close()
                self._open()
                return
            self.head = self._begin()
        except sqlite3.Error as error:
            raise Unreadable(f"the journal file can't be read any more: {error}") from None

    def rows(self, after: int = 0, count: int = EVERY) -> Generator[Row, None, None]:
        """The events behind a position, in position order. Raises Unreadable where the file is damaged."""
        position = after
        try:
            with closing(self._connection.execute(_ROWS, (after, count))) as cursor:
                for position, stream, version, event, digest in cursor:
                    yield Row(position=position, stream=stream, version=version, digest=digest, raw=event)
        except (sqlite3.Error, TypeError) as error:
            raise Unreadable(f"the journal file is damaged behind position {position}: {error}") from None

    def heads(self) -> Generator[tuple[str, int, str], None, None]:
        """The head that the file keeps of every stream: name, version, hash."""
        try:
            with closing(self._connection.execute(_HEADS)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise Unreadable(f"the journal file's list of streams is damaged: {error}") from None

    def moved_on(self, env: str, position: int) -> bool:
        """By a look of its own: this one sees what was there when it began."""
        try:
            with ExitStack() as stack:
                connection = connected(self._path, stack)
                stack.callback(connection.close)
                return connection.execute(_BEHIND, (f"env/{env}", position)).fetchone() is not None
        except (OSError, sqlite3.Error):
            return True

    def close(self) -> None:
        """End the look."""
        self._stack.close()


def connected(path: Path, stack: ExitStack) -> sqlite3.Connection:
    """A connection to a journal that changes nothing. Raises sqlite3.Error, and OSError for what may not be read.

    SQLite shares a journal with its writer through an index beside it, and makes one where there is none. Who may not,
    or does not own the journal (the owner could not open his index then), looks at a journal that nobody has open.
    """
    index, log = _index(path), path.with_name(path.name + "-wal")
    if index.exists() or os.geteuid() in (0, path.stat().st_uid):
        try:
            return _tried(path, "mode=ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        if index.exists():
            index.open("rb").close()
    if log.exists() and log.stat().st_size:  # what a killed engine left in there can't be merged in place
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statefork-audit-")))
        for file in (path, log):
            shutil.copyfile(file, folder / file.name)
        return _tried(folder / path.name, "mode=ro")
    return _tried(path, "mode=ro&immutable=1")


def _index(path: Path) -> Path:
    return path.with_name(path.name + "-shm")


def _tried(path: Path, how: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("select count(*) from sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
