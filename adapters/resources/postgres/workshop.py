"""The thread behind a resource: it makes branches in advance and takes away what nobody needs.

A branch from the pool costs no statement at all: its database, role and privileges are there, and that it is somebody's
is written in the ledger. What the pool holds and what waits to be removed is known to nobody else: after a crash both
are databases that no record names, and the next start removes them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import psycopg

from statefork.adapters.resources.postgres.cloning import Cloner
from statefork.adapters.resources.postgres.roles import Opened
from statefork.adapters.resources.postgres.together import TOGETHER_MAX, each
from statefork.journal.errors import StateforkError

GARBAGE_MAX = 32  # databases that wait to be removed; whoever brings more waits until some are
EXPECTED_MAX = 4  # branches that were expected and that nobody took
REST_S = 0.05  # who took a branch enters it next, and would wait for the disk beside the making of another one
_logger = logging.getLogger(__name__)


class Workshop:
    """Pool and garbage of one resource. Safe for several threads."""

    def __init__(self, name: str, cloner: Cloner) -> None:
        self._name = name
        self._cloner = cloner
        self._changed = threading.Condition()
        self._source = ""  # the version that the pool is of
        self._wanted = 0
        self._pool: deque[Opened] = deque()
        self._garbage: deque[str] = deque()
        self._expected: dict[str, str] = {}  # versions of which a branch is to be made, each by what it is copied from
        self._ready: dict[str, Opened] = {}  # of versions that were expected
        self._busy = self._awaited = False
        self._making = self._copying = ""  # the version of which a branch is being made, and what is copied for it
        self._rests_until = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work. Idempotent."""
        with self._changed:
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name=f"databases of {self._name}", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Finish what is under way, empty the pool, remove the garbage. Idempotent."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._changed.notify_all()  # who waits for room removes its own
        if thread is not None:
            thread.join()
        self._source = ""
        made = (*self._pool, *self._ready.values())
        left = [*(opened.database for opened in made), *self._garbage]
        for held in (self._pool, self._ready, self._garbage, self._expected):
            held.clear()
        each(left, self._remove)

    def keep(self, source: str, wanted: int) -> None:
        """Have so many branches of a version ready; those of another one go."""
        with self._changed:
            if self._source != source:
                self._garbage.extend(opened.database for opened in self._pool)
                self._pool.clear()
            self._source, self._wanted = source, wanted
            self._changed.notify_all()

    def expect(self, version: str, database: str) -> None:
        """Somebody will take a branch of a version in a moment: make one now, before all else.

        It is copied from the database that the version is made of, which nobody enters until ``let_go``.
        """
        with self._changed:
            if self._thread is not None:
                self._expected[version] = database
                self._changed.notify_all()

    def let_go(self, database: str) -> None:
        """Return when a database is not copied for what was expected, nor will be."""
        with self._changed:
            self._expected = {version: source for version, source in self._expected.items() if source != database}
            self._changed.wait_for(lambda: self._copying != database)

    def leave(self, source: str) -> None:
        """The version goes: make no more branches of it."""
        with self._changed:
            if self._source == source:
                self.keep("", 0)
            self._expected.pop(source, None)
            self._changed.wait_for(lambda: self._making != source)
            if source in self._ready:
                self._garbage.append(self._ready.pop(source).database)
                self._changed.notify_all()

    def take(self, source: str) -> Opened | None:
        """A branch of this version, if one is ready, or is about to be and nobody waits for it yet."""
        with self._changed:
            self._expected.pop(source, None)  # what is not begun yet is made sooner by who wants it
            opened = self._taken(source)
            if opened is None and source == self._making and not self._awaited:
                self._awaited = True
                self._changed.wait_for(lambda: self._has(source) or self._making != source)
                self._awaited = False
                opened = self._taken(source)
            if opened is not None:
                self._rests_until = time.monotonic() + REST_S
                self._changed.notify_all()
            return opened

    def _has(self, source: str) -> bool:
        return source in self._ready or (source == self._source and bool(self._pool))

    def _taken(self, source: str) -> Opened | None:
        if source in self._ready:
            return self._ready.pop(source)
        return self._pool.popleft() if self._has(source) else None

    def remove(self, database: str) -> None:
        """Remove a database and its role, soon."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or len(self._garbage) < GARBAGE_MAX)
            if self._thread is not None:
                self._garbage.append(database)
                self._changed.notify_all()
                return
        self._remove(database)

    def settle(self) -> None:
        """Return when there is nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or not (self._busy or self._has_work()))

    def _has_work(self) -> bool:
        return bool(self._garbage or self._expected) or self._is_short()

    def _is_short(self) -> bool:
        return bool(self._source) and len(self._pool) < self._wanted

    def _wait_s(self) -> float | None:
        """Until the next piece of work is due; None: there is none."""
        if not self._has_work():
            return None
        if self._expected or (self._is_short() and not self._pool):
            return 0.0
        return max(0.0, self._rests_until - time.monotonic())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy, self._making, self._copying = False, "", ""
                self._changed.notify_all()
                while not self._stopping and (wait_s := self._wait_s()) != 0.0:
                    self._changed.wait(wait_s)
                if self._stopping:
                    return
                self._busy = True
                if self._expected:
                    self._making = next(iter(self._expected))
                    self._copying = self._expected.pop(self._making)
                elif self._is_short():
                    self._making = self._source
                version, database = self._making, self._copying
                garbage = [] if version else self._some_garbage()
            if version:
                self._make(version, database)
            else:
                each(garbage, self._remove)

    def _some_garbage(self) -> list[str]:
        """As much as goes at once."""
        found = [self._garbage.popleft() for _ in range(min(TOGETHER_MAX, len(self._garbage)))]
        self._changed.notify_all()  # there is room for more
        return found

    def _make(self, version: str, database: str) -> None:
        try:
            opened = self._cloner.branch(version, database, enter=not (database or self._awaited))
        except Exception as error:
            known = isinstance(error, StateforkError | psycopg.Error)  # a full disk, a server that went away
            _logger.warning("no branch could be made in advance for %s: %s", self._name, error, exc_info=not known)
            with self._changed:
                if self._source == version and not database:
                    self._wanted = 0  # until the next start; branches are made when they are needed
            return
        with self._changed:
            self._put(version, opened, expected=bool(database))

    def _put(self, version: str, opened: Opened, *, expected: bool) -> None:
        if expected:
            while len(self._ready) >= EXPECTED_MAX:
                self._garbage.append(self._ready.pop(next(iter(self._ready))).database)
            self._ready[version] = opened
        elif self._source == version:
            self._pool.append(opened)
        else:
            self._garbage.append(opened.database)

    def _remove(self, database: str) -> None:
        try:
            self._cloner.drop(database)
        except Exception:
            _logger.exception("%s of %s could not be removed; the next start does", database, self._name)
