"""A continuing cut of a branch: who holds it is named; who is idle is ended, kept out a while, and may come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psycopg import sql

from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.guarding import refuse_loud_triggers
from statefork.adapters.resources.postgres.holders import Holder, survey
from statefork.adapters.resources.postgres.mark import mark, mark_of_shut, state_of_sequences
from statefork.adapters.resources.postgres.reading import Connection
from statefork.adapters.resources.postgres.sessions import END_S_MAX, end_idle, end_sessions
from statefork.engine.errors import ResourceBusy

_NAMED_MAX = 5
_LEAVING_S_MAX = 0.5  # for sessions whose client has closed them: the server notices a little later
_LOOK_S = 0.01
_STAYING = "SELECT FROM pg_catalog.pg_stat_get_activity(NULL) WHERE pid = ANY(%s)"
_OWNED = """
    SELECT 1 FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid AND s.refclassid = 'pg_authid'::regclass
    WHERE s.deptype = 'o' AND r.rolname = %s AND s.dbid = (SELECT oid FROM pg_database WHERE datname = %s)
"""


@contextmanager
def visiting(admin: Admin, database: str) -> Iterator[Connection]:
    """The engine's own session in a branch, also while the branch is closed to its users.

    It is a superuser's: nothing of the database may be evaluated in it, but PostgreSQL's own catalogs and functions.
    """
    connection = admin.connect(database)
    try:
        with admin.telling():
            yield connection
    finally:
        connection.close()


def nothing_to_wait_for() -> None:
    """Of a database that nobody else copies."""


class Closed:
    """A branch that applications are kept out of. One session of ours stays in it, for its counters, until it is shut.

    Shut, as its copying demands, it lets nobody in, not even us, and stays so until it is opened: what it counts is
    seen from outside then.
    """

    def __init__(
        self, admin: Admin, database: str, owner: str, let_go: Callable[[], None] = nothing_to_wait_for
    ) -> None:
        """``let_go`` returns when nobody copies it any more."""
        self.to_fork = False  # when it is sealed, a branch of that will be wanted at once
        self._let_go = let_go
        self._admin = admin
        self._database = database
        self._owner = owner
        self._inside: Connection | None = None
        self.seen = ""  # the last mark since it was closed
        self._shut: str | None = None  # since it is shut: the state of its sequences, empty where that is not known
        self._lock = threading.RLock()

    def close(self, env: str) -> None:
        """Let nobody in; end the idle sessions. Raises ResourceBusy, naming every holder.

        What is held at the first look ends none; who begins something between that and the end of the others is named
        as well, and goes on. Who is about to leave is waited for.
        """
        with self._lock:
            if self._shut is not None:
                return
            self.seen = ""
            self._limit(0)  # our own user is not bound by it
            inside = self._session()
            with self._admin.telling():
                began = time.monotonic()
                deadline = began + END_S_MAX
                while self._hold_nothing(inside, env, began + _LEAVING_S_MAX):
                    end_idle(self._admin, self._database, keep=inside.info.backend_pid, deadline=deadline)
                if self._admin.rows(_OWNED, self._database, self._database):
                    # made after RESET ROLE: no other branch's role could use it
                    refuse_loud_triggers(inside, self._admin.resource)
                    role, owner = sql.Identifier(self._database), sql.Identifier(self._owner)
                    inside.execute(sql.SQL("REASSIGN OWNED BY {} TO {}").format(role, owner))

    def shut(self) -> None:
        """Nobody is inside any more, nor comes in."""
        with self._lock:
            if self._shut is None:
                self._shut = self._admin.patiently(self._keep_all_out)
                self.leave()
            end_sessions(self._admin, self._database)

    def _keep_all_out(self) -> str:
        """Let nobody in any more; what the session of ours that is in it still says of the sequences."""
        if self._inside is None or self._inside.closed:
            self._limit(0)  # an earlier try may have shut it
        inside = self._session()
        name = sql.Identifier(self._database)
        self._admin.run(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name), again=True)
        return state_of_sequences(inside)

    def open(self) -> None:
        """Let applications in again."""
        with self._lock:
            self.leave()
            self._let_go()
            self._limit(-1)
            self.seen, self._shut = "", None

    def mark(self) -> str:
        """The write mark. After a crash of the server it is none that was taken before."""
        with self._lock:
            self.seen = self._admin.patiently(self._mark)
            return self.seen

    def _mark(self) -> str:
        with self._admin.connection() as outside:
            if self._shut is not None:
                return mark_of_shut(outside, self._database, self._shut)
            return mark(self._session(), outside)

    def leave(self) -> None:
        """End our own session."""
        with self._lock:
            if self._inside is not None:
                self._inside.close()
                self._inside = None

    def _session(self) -> Connection:
        if self._inside is None or self._inside.closed:
            self._inside = self._admin.connect(self._database)
        return self._inside

    def _limit(self, limit: int) -> None:
        """How many may come in. A server that died while the branch was copied may have left it closed to us, too."""
        name = sql.Identifier(self._database)
        change = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {} ALLOW_CONNECTIONS true").format(
            name, sql.Literal(limit)
        )
        self._admin.run(change, again=True)

    def _hold_nothing(self, inside: Connection, env: str, deadline: float) -> bool:
        """Whether sessions are there, all of which may go. Raises ResourceBusy when some that hold stay."""
        found: tuple[Holder, ...] = ()
        while not found or self._some_leave(found, deadline):
            with self._admin.connection() as outside:
                seen = survey(inside, outside)
            found = seen.holders
            if not found:
                return bool(seen.idle)
        named = "; ".join(str(holder) for holder in found[:_NAMED_MAX])
        more = f"; and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        raise ResourceBusy(
            f"{self._admin.resource}: the database of {env} can't be cut: {named}{more}",
            hint="End the transaction, release the lock, drop the temporary table or close the session; then try again",
            resource=self._admin.resource,
            env=env,
            kinds=",".join(sorted({holder.kind for holder in found})),
        )

    def _some_leave(self, found: tuple[Holder, ...], deadline: float) -> bool:
        """Whether a session that holds ends by the deadline: not that another look would see the same otherwise."""
        holding = {holder.session.pid for holder in found if holder.session is not None}
        while holding and time.monotonic() < deadline:
            if len(self._admin.rows(_STAYING, sorted(holding))) < len(holding):
                return True
            time.sleep(_LOOK_S)
        return False
