"""Ending the sessions of a database, and knowing when they are gone.

``pg_terminate_backend`` waits in steps of 100 ms; looking into ``pg_stat_activity`` every half a millisecond takes
some 4 ms in all. A session that is gone from there has handed in what it counted.
"""

from __future__ import annotations

import time

from statefork.adapters.resources.postgres.connecting import Admin, Connection
from statefork.engine.errors import ResourceBusy

POLL_S = 0.0005
END_S_MAX = 10.0
CLOSING_S_MAX = 0.03
_AGAIN_S = 0.05  # newcomers are ended, too

_END = b"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_get_activity(NULL)
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = %s) AND pid <> %s
"""
_STATES = b"""
    SELECT pid, state IS NOT DISTINCT FROM 'idle' AND xact_start IS NULL FROM pg_stat_get_activity(NULL)
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = %s) AND pid <> %s
    AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
"""
_END_IDLE = b"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_get_activity(NULL)
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = %s) AND pid <> %s
    AND state = 'idle' AND xact_start IS NULL
"""
_LEFT = b"""
    SELECT pid, pg_get_userbyid(usesysid), application_name FROM pg_stat_get_activity(NULL)
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = %s) AND pid <> %s
"""


def end_sessions(admin: Admin, database: str, *, keep: int = 0) -> None:
    """End every session of a database, but that of backend ``keep``, and join it.

    Raises ResourceBusy, naming who does not end.
    """
    with admin.connection() as connection:
        deadline = time.monotonic() + END_S_MAX
        while _left(connection, database, keep):
            connection.execute(_END, (database, keep))
            again = time.monotonic() + _AGAIN_S
            while left := _left(connection, database, keep):
                now = time.monotonic()
                if now >= deadline:
                    raise _stuck(admin.resource, database, left)
                if now >= again:
                    break
                time.sleep(POLL_S)


def end_idle(admin: Admin, database: str, *, keep: int, deadline: float) -> None:
    """End the idle sessions of a database, but that of backend ``keep``, and join them.

    One that has begun something meanwhile is left alone: then this returns at once, and whoever asks can look again.
    Raises ResourceBusy after ``deadline`` (of the monotonic clock), naming who does not end.
    """
    with admin.connection() as connection:
        while there := connection.execute(_STATES, (database, keep)).fetchall():
            if any(not idle for _, idle in there):
                return
            connection.execute(_END_IDLE, (database, keep))
            if time.monotonic() >= deadline:
                raise _stuck(admin.resource, database, _left(connection, database, keep))
            time.sleep(POLL_S)


def let_end(connection: Connection) -> None:
    """Give the sessions of the connection's database that were just closed by their clients the moment they need."""
    deadline = time.monotonic() + CLOSING_S_MAX
    info = connection.info
    while _left(connection, info.dbname, info.backend_pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _left(connection: Connection, database: str, keep: int) -> list[tuple[object, ...]]:
    return connection.execute(_LEFT, (database, keep)).fetchall()


def _stuck(resource: str, database: str, left: list[tuple[object, ...]]) -> ResourceBusy:
    named = ", ".join(f"{user} (pid {pid}, {application or 'no application name'})" for pid, user, application in left)
    return ResourceBusy(
        f"{resource}: sessions of {database} did not end within {END_S_MAX:g} s: {named}",
        hint="Look at what they do in pg_stat_activity",
        resource=resource,
        database=database,
    )
