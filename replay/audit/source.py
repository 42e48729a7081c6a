"""Raw rows out of a journal file, read only: an engine may be writing to it meanwhile.

Only the file's two tables are known here: ``events`` (position, stream, version, event, hash) and ``streams`` (the head
of each stream, by which an end that was cut off is seen).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row

JOURNAL_FILE = "journal.sqlite3"
_BUSY_SECONDS = 10.0
_COLUMNS = "position, stream, version, cast(event as blob), hash"
_ROWS = f"select {_COLUMNS} from events where position > ? order by position limit ?"
EVERY = -1  # no limit
_HEADS = "select stream, version, hash from streams"


class JournalFile:
    """One journal file, opened for one consistent look: what is appended later is not seen until ``look_again``."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise Unreadable(f"there is no journal at {path}")
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
            )
            self.head = self._begin()
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
            self.head = self._begin()
        except sqlite3.Error as error:
            raise Unreadable(f"the journal file can't be read any more: {error}") from None

    def rows(self, after: int = 0, count: int = EVERY) -> Iterator[Row]:
        """The events behind a position, in position order. Raises Unreadable where the file is damaged."""
        position = after
        try:
            with closing(self._connection.execute(_ROWS, (after, count))) as cursor:
                for position, stream, version, event, digest in cursor:
                    yield Row(position=position, stream=stream, version=version, digest=digest, raw=event)
        except (sqlite3.Error, TypeError) as error:
            raise Unreadable(f"the journal file is damaged behind position {position}: {error}") from None

    def heads(self) -> Iterator[tuple[str, int, str]]:
        """The head that the file keeps of every stream: name, version, hash."""
        try:
            with closing(self._connection.execute(_HEADS)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise Unreadable(f"the journal file's list of streams is damaged: {error}") from None

    def close(self) -> None:
        """End the look."""
        self._connection.close()
