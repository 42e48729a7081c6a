"""Whose the databases of one tag are on somebody else's server: one state directory's, and one engine's at a time.

A copy of a state directory has the tag of the original (see naming.py), and would take for leftovers what it has no
record of. So the server knows which directory the tag belongs to, in a comment on the owner role; and an engine that
runs keeps a session there that holds an advisory lock. A directory is told by inodes: they stay when it is moved within
a file system, and after a restart of the machine; a copy gets others.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time

import psycopg
from psycopg import sql

from statefork.adapters.resources.postgres.connecting import APPLICATION, Admin, Connection
from statefork.journal.errors import StateLocked

LOCK_S_MAX = 10.0  # a session that was told to end is waited for so long
_POLL_S = 0.005
_LOCK = b"SELECT pg_catalog.pg_try_advisory_lock(%s)"
_HOLDER = b"""
    SELECT a.pid, a.application_name = %s OR NOT r.rolsuper
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
    JOIN pg_catalog.pg_roles r ON r.rolname = a.usename
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.datname = current_database()
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
      AND (l.classid::bigint << 32 | l.objid::bigint) = %s
"""
_COMMENT = b"SELECT pg_catalog.shobj_description(oid, 'pg_authid') FROM pg_catalog.pg_roles WHERE rolname = %s"
_SAYS = "statefork: the state directory with the inodes "


class Claim:
    """One state directory's hold of one tag."""

    def __init__(self, admin: Admin, owner: str, directory: str) -> None:
        """``owner`` is the tag's role, ``directory`` what tells the state directory from others."""
        self._admin = admin
        self._owner = owner
        self._directory = directory
        self._key = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], signed=True)
        self._who = f"{APPLICATION} {hashlib.sha256(directory.encode()).hexdigest()[:24]}"
        self._lock = threading.RLock()
        self._session: Connection | None = None

    def take(self) -> None:
        """Be the only engine that uses these databases. Raises StateLocked where another one does."""
        with self._lock:
            session = self._admin.connect(application_name=self._who)
            try:
                with self._admin.telling():
                    self._wait_for(session)
            except BaseException:
                session.close()
                raise
            self._session = session

    def _wait_for(self, session: Connection) -> None:
        """End whose the lock may not be: of an engine of this directory that was killed, or an application's."""
        deadline = time.monotonic() + LOCK_S_MAX
        while True:
            taken = session.execute(_LOCK, (self._key,)).fetchone()
            if taken and taken[0]:
                return
            holders = session.execute(_HOLDER, (self._who, self._key)).fetchall()
            if time.monotonic() >= deadline or any(not ends for _, ends in holders):
                raise self._taken("another engine has opened them")
            for pid, _ in holders:
                session.execute(b"SELECT pg_catalog.pg_terminate_backend(%s)", (pid,))
            time.sleep(_POLL_S)

    def check_directory(self) -> None:
        """See that the server knows this directory as the tag's, or none yet. Raises StateLocked."""
        says = f"{_SAYS}{self._directory}"
        found = self._admin.rows(_COMMENT.decode(), self._owner)
        said = found[0][0] if found else None
        if said is None:
            comment = sql.SQL("COMMENT ON ROLE {} IS {}").format(sql.Identifier(self._owner), sql.Literal(says))
            self._admin.run(comment, again=True)
        elif said != says:
            raise self._taken("this state directory is a copy of the one that made them, or was moved here")

    def keep(self) -> None:
        """Take the lock again where the server ended our session meanwhile. Raises StateLocked."""
        with self._lock:
            session = self._session
            if session is None:
                return
            with contextlib.suppress(psycopg.Error):
                session.execute(b"")
                return
            session.close()
            self.take()

    def let_go(self) -> None:
        """Idempotent."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _taken(self, why: str) -> StateLocked:
        return StateLocked(
            f"{self._admin.resource}: the databases of this journal are not this state directory's: {why}",
            hint="Use the original, or begin with a new state directory. If the original is gone for good, tell the "
            f'server so: COMMENT ON ROLE "{self._owner}" IS NULL; then open this one: it removes those databases of '
            "the original that it does not know",
            resource=self._admin.resource,
        )
