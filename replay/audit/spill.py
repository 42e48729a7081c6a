"""What checkers must remember of the whole journal lives in private temporary databases, not in memory.

SQLite keeps one in its page cache up to a bound and writes the rest to an unnamed file that vanishes with the process.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from typing import Generic, TypeVar

HOT_MAX = 4096  # entries of a Kept that are in memory at a time
_CACHE_KIB = 2048
V = TypeVar("V")


def open_spill(schema: str) -> sqlite3.Connection:
    """An empty database with the given schema."""
    spill = sqlite3.connect("", isolation_level=None)
    spill.execute(f"pragma cache_size = -{_CACHE_KIB}")
    spill.execute("pragma journal_mode = off")
    spill.execute("pragma synchronous = off")
    spill.executescript(schema)
    spill.execute("begin")  # for good: what is not committed needs no file as long as it fits into the cache
    return spill


class Kept(Generic[V]):
    """A mapping from text to any number of records, of which only some are in memory.

    A record that was got may be changed in place while the caller asks for a few others: it holds one for one row.
    """

    def __init__(self, hot_max: int = 0) -> None:
        self._hot: dict[str, V] = {}  # those that were asked for last, when they were not here, stand at the end
        self._hot_max = hot_max or HOT_MAX
        self._count = 0
        self._spill: sqlite3.Connection | None = None  # made when the first records leave memory

    def __len__(self) -> int:
        return self._count

    @property
    def hot(self) -> int:
        """How many records are in memory."""
        return len(self._hot)

    def get(self, key: str) -> V | None:
        """The record, if there is one."""
        found = self._hot.get(key)
        if found is None and self._spill is not None:
            row = self._spill.execute("select record from kept where key = ?", (key,)).fetchone()
            if row is not None:
                found = pickle.loads(row[0])
                self._warm(key, found)
        return found

    def put(self, key: str, record: V) -> None:
        """Keep a record under a key, in place of the one before."""
        if key in self._hot:
            self._hot[key] = record
            return
        if self.get(key) is None:
            self._count += 1
        self._warm(key, record)

    def drop(self, key: str) -> None:
        """Forget the record, if there is one."""
        if self.get(key) is not None:
            self._count -= 1
            del self._hot[key]
            if self._spill is not None:
                self._spill.execute("delete from kept where key = ?", (key,))

    def values(self) -> Iterator[V]:
        """Every record, in the order of keys. Changes that are made on the way are not kept."""
        if spill := self._cool(0):
            for (record,) in spill.execute("select record from kept order by key"):
                yield pickle.loads(record)

    def close(self) -> None:
        """Let go of everything."""
        self._hot.clear()
        if self._spill is not None:
            self._spill.close()

    def _warm(self, key: str, record: V) -> None:
        self._hot[key] = record
        if len(self._hot) > self._hot_max:
            self._cool(self._hot_max // 2)

    def _cool(self, keep: int) -> sqlite3.Connection | None:
        """Move all but the last ``keep`` records out of memory; where they are, if any is."""
        leaving = list(self._hot)[: len(self._hot) - keep]
        if leaving:
            if self._spill is None:
                self._spill = open_spill("create table kept (key text primary key, record blob) without rowid;")
            pickled = [(key, pickle.dumps(self._hot.pop(key), 5)) for key in leaving]
            self._spill.executemany("insert or replace into kept values (?, ?)", pickled)
        return self._spill
