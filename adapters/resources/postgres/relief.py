"""Our own server with a full table of locks lets nobody in, the engine neither: the one who filled it is ended.

The table is the whole server's, and one application can fill it (some ten thousand advisory locks). A connection that
is open already can still ask who did, if it touches no catalog that all databases share (those need a place in the
table); so one is kept for that, and its answer is a process to end by a signal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import psycopg

from statefork.adapters.resources.postgres.connecting import Admin, Connection
from statefork.adapters.resources.postgres.sessions import END_S_MAX, POLL_S

MANY_LOCKS = 1000  # an environment with fewer did not fill the table
_logger = logging.getLogger(__name__)
_HOLDERS = b"""
    SELECT s.datid, count(*), array_agg(DISTINCT s.pid)
    FROM pg_lock_status() l JOIN pg_stat_get_activity(NULL) s USING (pid)
    WHERE s.datid <> 0 AND s.usesysid <> 10 AND NOT l.fastpath GROUP BY 1 ORDER BY 2 DESC LIMIT 1
"""  # 10: the superuser that a cluster begins with
_LEFT = b"SELECT FROM pg_stat_get_activity(NULL) WHERE pid = ANY(%s)"


class Relief:
    """Ends the sessions of an environment that filled the table of locks. Safe for several threads."""

    def __init__(self, admin: Admin, process_ids: Callable[[], tuple[int, ...]]) -> None:
        """``process_ids`` are the server's: nobody else is ended."""
        self._admin = admin
        self._process_ids = process_ids
        self._lock = threading.Lock()
        self._session: Connection | None = None
        self._relieved = 0.0
        self._closed = False

    def keep(self) -> None:
        """Have the connection, also after the server was started again. Raises ResourceFailed, RuntimeDied."""
        with self._lock:
            if self._session is not None:
                with contextlib.suppress(psycopg.Error):
                    self._session.execute(b"")
                    return
                self._session.close()
                self._session = None
            if not self._closed:
                self._session = self._admin.connect()

    def relieve(self, since: float) -> bool:
        """Whether there is room again for what found none ``since`` (of the monotonic clock)."""
        with self._lock:
            if self._relieved > since:
                return True
            if self._session is None:
                return False
            try:
                done = self._end_most(self._session)
            except psycopg.Error:
                return False
            if done:
                self._relieved = time.monotonic()
            return done

    def _end_most(self, session: Connection) -> bool:
        found = session.execute(_HOLDERS).fetchone()
        if found is None or found[1] < MANY_LOCKS:
            return False
        database, locks, pids = found
        _logger.warning("the server's table of locks is full: who holds %d in database %d is ended", locks, database)
        for pid in set(pids).intersection(self._process_ids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S_MAX
        while session.execute(_LEFT, (pids,)).fetchall():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """For good. Idempotent."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            session.close()
