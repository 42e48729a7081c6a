"""Which way of copying a database is taken, and why.

A server accepts ``file_copy_method = clone`` on file systems without reflinks, too, and copies; so clones count only
where the file system's own account (FIEMAP) shows shared extents below the server's data directory: first by a trial of
two files, then by looking at the first real clone.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from statefork.adapters.resources.postgres.binaries import CLONES_SINCE
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.reflink import ReflinkProbe, probe_reflink, shared_bytes
from statefork.engine.ports import Strategy

MEASURED_BYTES_MAX = 64 << 20  # larger databases are copied as files: writing all pages to the log is slower
_KEPT = 0.7  # of what was measured before, against what was just measured


class Way(msgspec.Struct, frozen=True):
    """One way: the STRATEGY of CREATE DATABASE, and the method of copying files."""

    strategy: str
    method: str = ""


CLONE = Way("FILE_COPY", "clone")
FILES = Way("FILE_COPY")
PAGES = Way("WAL_LOG")


class Ways:
    """Chooses among the ways of one server. Safe for several threads."""

    def __init__(self, admin: Admin, data: Path | None, *, own: bool) -> None:
        self._admin = admin
        self.data = data
        self.own = own
        self._lock = threading.Lock()
        self._probe = ReflinkProbe(False, "the server was not looked at")
        self._proved = False
        self._seconds: dict[Way, float] = {}
        self._bytes = 0

    @property
    def clones(self) -> bool:
        """Whether copies share their extents."""
        return self._probe.works

    def look(self) -> None:
        """Probe the server's data directory. The answer holds until the server says otherwise."""
        probe = self._look()
        with self._lock:
            self._probe, self._proved = probe, False

    def _look(self) -> ReflinkProbe:
        with self._admin.connection() as connection:
            version = connection.info.server_version
            if version // 10000 < CLONES_SINCE:
                return too_old(version // 10000)
        if self.data is None:
            return ReflinkProbe(False, "the server's data directory can't be looked at from here")
        try:
            return probe_reflink(self.data / "base")
        except OSError as error:
            return ReflinkProbe(False, f"the server's data directory can't be tried ({error.strerror})")

    def measure(self, database: str) -> None:
        """Learn the size of what will be copied."""
        self._bytes = self._admin.rows("SELECT pg_database_size(%s)", database)[0][0]

    @property
    def bytes(self) -> int:
        """Of the database that was last measured."""
        return self._bytes

    def next(self) -> Way:
        """How to make the next copy: proved clones; else each way once, then the one that was faster of late."""
        with self._lock:
            if self._probe.works:
                return CLONE
            if self._bytes > MEASURED_BYTES_MAX:
                return FILES
            return min((FILES, PAGES), key=lambda way: self._seconds.get(way, 0.0))

    def took(self, way: Way, seconds: float, database: str) -> None:
        """A copy was made in this time."""
        with self._lock:
            before = self._seconds.get(way)
            self._seconds[way] = seconds if before is None else _KEPT * before + (1 - _KEPT) * seconds
            prove = way == CLONE and not self._proved
        if prove:
            fault = self._fault_of_clone(database)
            with self._lock:
                self._proved = True
                if fault:
                    self._probe = ReflinkProbe(False, fault)

    def _fault_of_clone(self, database: str) -> str:
        """Why a clone that the server made is none; empty when its largest file shares its extents."""
        assert self.data is not None
        (oid,) = self._admin.rows("SELECT oid FROM pg_database WHERE datname = %s", database)[0]
        try:
            files = [path for path in (self.data / "base" / str(oid)).iterdir() if path.is_file()]
            largest = max(files, key=lambda path: path.stat().st_size)
            return "" if shared_bytes(largest) else "the server copied the bytes when it was told to clone"
        except (OSError, ValueError) as error:
            return f"a clone could not be looked at ({error})"

    def strategy(self, pool: int) -> Strategy:
        """What ``statefork doctor`` shows."""
        times = sorted(self._seconds.items(), key=lambda item: item[1])
        measured = ", ".join(f"{way.strategy} {seconds * 1000:.0f} ms" for way, seconds in times)
        return described(self._probe, own=self.own, pool=pool, way=self.next(), measured=measured)


def too_old(version: int) -> ReflinkProbe:
    """Of a server that knows no clones, whatever the file system does."""
    return ReflinkProbe(False, f"the server is PostgreSQL {version}, which can't clone files")


def described(probe: ReflinkProbe, *, own: bool, pool: int, way: Way = FILES, measured: str = "") -> Strategy:
    """A strategy in words."""
    pooled = f"; branches of the base made in advance: {pool}" if pool else ""
    if probe.works:
        return Strategy(name="clone", reason=f"{probe.reason}: a branch shares all that it does not write{pooled}")
    last = f" (of late: {measured})" if measured else ""
    place = "a server of version 18 on this machine, its data directory"
    if own:
        place = "a store (statefork store init) or a state directory"
    return Strategy(
        name=f"copy ({way.strategy.lower()})",
        reason=f"{probe.reason}; a branch or a seal copies the database{last}{pooled}",
        faster=f"{place} on XFS (reflink=1) or btrfs, for databases from some tens of megabytes",
    )
