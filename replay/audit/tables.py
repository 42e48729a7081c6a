"""Raw rows out of a journal in a PostgreSQL database, read only: engines may be writing to it meanwhile.

Only two tables are known here, the same as in a file: ``events`` and ``streams``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from statefork.journal.errors import JournalError
from statefork.journal.postgres_link import connect, driver, parse_address, unavailable
from statefork.replay.audit import heads
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.source import EVERY

if TYPE_CHECKING:
    from statefork.journal.postgres_link import Connection

_FETCHED_ROWS = 500


class JournalTables:
    """One journal, opened for one consistent look: see :class:`statefork.replay.audit.source.JournalFile`."""

    def __init__(self, address: str) -> None:
        try:
            self._address = parse_address(address)
            self._connection: Connection = connect(self._address)
        except JournalError as error:
            raise Unreadable(str(error)) from None
        except driver().Error as error:
            raise Unreadable(str(unavailable(self._address, "can't be read", error))) from None
        self._connection.autocommit = False
        self._connection.isolation_level = driver().IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True
        try:
            self.head = self._begin()
        except Unreadable:
            self._connection.close()
            raise

    def _query(self, text: str) -> bytes:
        return text.format(
            events=f'"{self._address.schema}".events', streams=f'"{self._address.schema}".streams'
        ).encode()

    def _begin(self) -> int:
        try:
            found = self._connection.execute(self._query("select coalesce(max(position), 0) from {events}")).fetchone()
        except driver().Error as error:
            raise Unreadable(str(unavailable(self._address, "can't be read", error))) from None
        assert found is not None
        return int(found[0])

    def look_away(self) -> None:
        """Until ``look_again``: an open look keeps the server from cleaning up. Idempotent."""
        self._connection.rollback()

    def look_again(self) -> None:
        """From now on see what was appended meanwhile."""
        try:
            self.look_away()
        except driver().Error as error:
            raise Unreadable(str(unavailable(self._address, "can't be read any more", error))) from None
        self.head = self._begin()

    def rows(self, after: int = 0, count: int = EVERY) -> Generator[Row, None, None]:
        """The events behind a position, in position order. Raises Unreadable where they can't be read."""
        position = after
        columns = "position, stream, version, convert_to(event, 'UTF8'), hash"
        query = f"select {columns} from {{events}} where position > %s order by position"
        limit = "" if count == EVERY else f" limit {int(count)}"
        try:
            with self._connection.cursor(name="rows") as cursor:
                cursor.itersize = _FETCHED_ROWS
                cursor.execute(self._query(query + limit), (after,), binary=True)
                for position, stream, version, event, digest in cursor:
                    yield Row(position=position, stream=stream, version=version, digest=digest, raw=event)
        except driver().Error as error:
            raise Unreadable(
                str(unavailable(self._address, f"can't be read behind position {position}", error))
            ) from None

    def heads(self) -> Generator[tuple[str, int, str], None, None]:
        """The head that the database keeps of every stream: name, version, hash."""
        found: list[tuple[Any, ...]]
        try:
            found = self._connection.execute(self._query("select stream, version, hash from {streams}")).fetchall()
        except driver().Error as error:
            raise Unreadable(str(unavailable(self._address, "has no list of streams", error))) from None
        yield from found

    def journal(self) -> str:
        """Its identity, as its first event says; empty where there is none. Raises Unreadable."""
        with closing(self.rows(0, 1)) as rows:
            first = next(rows, None)
        return str(first.data.get("journal", "")) if first is not None and first.kind == heads.JOURNAL else ""

    @property
    def shown(self) -> str:
        """Where it is, without a password."""
        return self._address.shown

    def moved_on(self, env: str, position: int) -> bool:
        """By a connection of its own: this one sees what was there when its look began."""
        query = "select 1 from {events} where stream = %s and position > %s limit 1"
        try:
            with connect(self._address) as connection:
                return connection.execute(self._query(query), (f"env/{env}", position)).fetchone() is not None
        except (JournalError, driver().Error):
            return True

    def close(self) -> None:
        """End the look."""
        self._connection.close()
