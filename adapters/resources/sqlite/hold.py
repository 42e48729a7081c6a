"""The engine's own hold on a branch's database file: its write counter, and the moment at which it may be cloned.

Two facts decide the shape of this module.

* SQLite counts commits in the WAL index (``iChange``; in rollback mode, in the file's header). The counter survives
  checkpoints, so sealing does not change it, and every commit of whatever process does. It lives as long as somebody
  has the database open: hence one idle connection per open branch.
* POSIX locks belong to the process: closing *any* descriptor of a file drops all the locks that SQLite holds on it in
  this process. Hence the descriptors through which we read and clone stay open as long as the connection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from statefork.adapters.resources.holders import Holder, lockers, openers, told
from statefork.adapters.resources.reflink import shared_bytes_of
from statefork.engine.errors import ResourceBusy, ResourceFailed

BUSY_S_MAX = 0.25
_RETRY_S = 0.002
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_HEADER_BYTES = 100
_WRITE_VERSION_AT = 18  # 1 = rollback journal, 2 = WAL
_CHANGE_COUNTER_AT = 24
_INDEX_HEADER_BYTES = 48  # twice, one after the other, at the beginning of the WAL index
_INDEX_CHANGES_AT = 8
_TRANSACTION_LOCKS = range(120, 128)  # bytes of the WAL index that readers, writers and checkpoints lock
_ROLLBACK_LOCKS = range(0x40000000, 0x40000200)


class Hold:
    """One open branch file. Its methods block; they exclude each other."""

    def __init__(self, path: Path, resource: str) -> None:
        self.path = path
        self._resource = resource
        self._lock = threading.RLock()
        self._file = self._index = -1
        self._token = ""
        self._connection: sqlite3.Connection
        self._open()

    def mark(self) -> str:
        """Differs whenever somebody committed in between, or replaced the file."""
        with self._lock:
            self._follow()
            if not self._is_wal():
                header = os.pread(self._file, _HEADER_BYTES, 0)
                return f"{self._token}.r{header[_CHANGE_COUNTER_AT : _CHANGE_COUNTER_AT + 4].hex()}"
            return f"{self._token}.w{self._index_changes()}"

    @contextlib.contextmanager
    def settled(self) -> Iterator[int]:
        """The descriptor of a file that holds every commit and that nobody can write to inside the body.

        Raises ResourceBusy, naming the holders of an open transaction, after BUSY_S_MAX.
        """
        with self._lock:
            self._follow()
            deadline = time.monotonic() + BUSY_S_MAX
            while not self._begin():
                if time.monotonic() >= deadline:
                    raise self._busy()
                time.sleep(_RETRY_S)
            try:
                yield self._file
            finally:
                self._connection.execute("ROLLBACK")

    def shared_bytes(self) -> int:
        """How many of the file's bytes lie in extents that other files have too."""
        with self._lock:
            self._follow()
            return shared_bytes_of(self._file)

    def close(self) -> None:
        """Let go. Idempotent."""
        with self._lock:
            self._connection.close()
            for descriptor in (self._index, self._file):
                if descriptor >= 0:
                    os.close(descriptor)
            self._index = self._file = -1

    def _open(self) -> None:
        self._token = secrets.token_hex(4)
        self._index = -1
        self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_S_MAX
            )
        except sqlite3.Error as error:
            os.close(self._file)
            raise self._failed(error) from error
        try:
            # Opens the WAL index without parsing the schema, which takes longer than all the rest of a branch.
            self._connection.execute("PRAGMA schema_version").fetchone()
            self._connection.execute("PRAGMA busy_timeout = 0")  # from here on we do the waiting
            if self._is_wal():
                self._index = os.open(self._beside("-shm"), os.O_RDONLY | os.O_CLOEXEC)
        except sqlite3.Error as error:
            self.close()
            if error.sqlite_errorcode in _BUSY_CODES:
                raise self._busy() from error
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def _follow(self) -> None:
        """Open anew where the path leads to another file, or the journal mode was changed."""
        try:
            same = self.path.stat().st_ino == os.fstat(self._file).st_ino
        except FileNotFoundError as error:
            raise ResourceFailed(
                f"{self._resource}: the database file {self.path.name} was removed by the application",
                resource=self._resource,
                path=str(self.path),
            ) from error
        if not same or self._is_wal() != (self._index >= 0):
            self.close()
            self._open()

    def _is_wal(self) -> bool:
        header = os.pread(self._file, _HEADER_BYTES, 0)
        return len(header) == _HEADER_BYTES and header[_WRITE_VERSION_AT] == 2

    def _index_changes(self) -> int:
        while True:
            index = os.pread(self._index, 2 * _INDEX_HEADER_BYTES, 0)
            first, second = index[:_INDEX_HEADER_BYTES], index[_INDEX_HEADER_BYTES:]
            if first == second:  # else a commit was just being written
                changes: int = struct.unpack_from("=I", first, _INDEX_CHANGES_AT)[0]
                return changes

    def _begin(self) -> bool:
        """Move the WAL into the file and take the write lock; False when somebody was in the way."""
        try:
            # What we write are checkpoints, and a seal that must survive the machine forces its own copy to the disk.
            self._connection.execute("PRAGMA synchronous = OFF")
            busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if busy:
                return False
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in _BUSY_CODES:
                return False
            raise self._failed(error) from error
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if self._wal_is_empty():
            return True
        self._connection.execute("ROLLBACK")  # somebody committed between the two statements
        return False

    def _wal_is_empty(self) -> bool:
        try:
            return self._beside("-wal").stat().st_size == 0
        except FileNotFoundError:
            return True

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _holders(self) -> list[Holder]:
        wal = self._is_wal()
        found = lockers([(self._beside("-shm"), _TRANSACTION_LOCKS)] if wal else [(self.path, _ROLLBACK_LOCKS)])
        if found:
            return found
        paths = {str(self.path), str(self._beside("-wal"))}
        return [holder for holder in openers(lambda path, _: path in paths) if holder.pid != os.getpid()]

    def _busy(self) -> ResourceBusy:
        holders = self._holders()
        return ResourceBusy(
            f"{self._resource}: a transaction is open on {self.path.name}: {told(holders)}",
            hint="End the transaction (commit, roll back, or finish reading a result), then try again",
            resource=self._resource,
            pids=",".join(str(holder.pid) for holder in holders),
        )

    def _failed(self, error: sqlite3.Error) -> ResourceFailed:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return ResourceFailed(
            f"{self._resource}: SQLite says of {self.path.name}: {error}",
            hint="The disk of the state directory is full. Free space, or let its store grow (statefork store resize), "
            "then try again; nothing was lost"
            if full
            else "",
            resource=self._resource,
            path=str(self.path),
        )
