"""Who keeps a database from being cut: what would be lost or torn if its sessions ended now. Each by name.

PostgreSQL shows transactions, advisory locks, temporary tables, prepared transactions, replication slots and
subscriptions. Who LISTENs is seen on this machine (see :mod:`statefork.adapters.resources.postgres.listeners`);
elsewhere, and for cursors WITH HOLD everywhere, all that is known is a session's last statement. So a held cursor over
whose rows the session runs other statements is not seen: its session is idle, and its next FETCH fails when that ended.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec

from statefork.adapters.resources.postgres.listeners import listening
from statefork.adapters.resources.postgres.reading import Connection, rows

_STATEMENT_CHARACTERS_MAX = 120


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session of the database, as a person would look for it."""

    pid: int
    application: str  # application_name; empty when the client gave none
    client: str  # its address; "local" for a Unix socket
    state: str
    since: datetime.datetime | None  # of this state
    statement: str  # the beginning of the last one, without literals

    def __str__(self) -> str:
        who = f"{self.application or 'a client'} (pid {self.pid}, {self.client})"
        since = f" since {self.since:%H:%M:%S}" if self.since else ""
        return f"{who}, {self.state}{since}: {self.statement or 'no statement yet'}"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why the database can't be cut."""

    kind: str  # transaction | advisory lock | listen | temporary table | prepared transaction | …
    what: str  # "advisory lock 42", "temporary table basket"
    session: Session | None = None  # None: it belongs to no session (a prepared transaction, a slot)

    def __str__(self) -> str:
        return f"{self.what} of {self.session}" if self.session else self.what


_SESSIONS = """
SELECT pid, coalesce(application_name, ''), coalesce(client_hostname, host(client_addr), 'local'),
       coalesce(state, 'hidden'), coalesce(state_change, backend_start), coalesce(query, ''), backend_type,
       xact_start IS NOT NULL
FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = %s) AND pid <> %s
AND backend_type NOT IN ('autovacuum worker', 'parallel worker') ORDER BY pid
"""
_ADVISORY = """
SELECT pid, classid, objid, objsubid, mode FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = %s) AND pid <> %s ORDER BY 1, 2, 3
"""
_TEMPORARY = """
SELECT pg_catalog.pg_stat_get_backend_pid(substring(n.nspname FROM 9)::integer), c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence = 't' AND c.relkind IN ('r', 'p', 'S', 'v') AND n.nspname ~ '^pg_temp_[0-9]+$'
AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::regclass
                AND d.objid = c.oid AND d.deptype IN ('a', 'i')) ORDER BY 1, 2
"""
_WITHOUT_SESSION = """
SELECT 'prepared transaction', gid::text, prepared FROM pg_catalog.pg_prepared_xacts WHERE database = %s
UNION ALL SELECT 'replication slot', slot_name::text, NULL FROM pg_catalog.pg_replication_slots WHERE database = %s
UNION ALL SELECT 'subscription', subname::text, NULL FROM pg_catalog.pg_subscription
WHERE subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = %s) ORDER BY 1, 2
"""
_OWNERS_SINCE = 160000  # before, the number in a schema's name was not the one that tells the process
_HELD_CURSOR = re.compile(r"\s*(?:DECLARE\b.*\bWITH\s+HOLD\b|FETCH\b|MOVE\b)", re.IGNORECASE | re.DOTALL)
_LISTEN = re.compile(r"\s*LISTEN\b", re.IGNORECASE)


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of a database at one moment."""

    holders: tuple[Holder, ...]
    idle: tuple[Session, ...]  # those that hold nothing: a pool may lose them and open others
    listeners_seen: bool  # False: of a session that listens only its last statement could tell


def survey(connection: Connection, outside: Connection | None = None) -> Survey:
    """Everything that keeps the connection's database from being cut now. The connection itself does not count.

    The connection is a superuser's (others are not shown what sessions do, and each then counts as a holder), and so is
    ``outside``, which may be in another database: what it has asked before it need not plan again.
    """
    outside = outside or connection
    database, own = connection.info.dbname, connection.info.backend_pid
    found: list[Holder] = []
    sessions: dict[int, Session] = {}
    resting: dict[int, str] = {}
    for *facts, kind, in_transaction in rows(outside, _SESSIONS, database, own):
        session = sessions[facts[0]] = _session(facts)
        if kind != "client backend":
            found.append(Holder(kind="background process", what=f"a {kind}", session=session))
        elif session.state in ("hidden", "disabled"):
            found.append(Holder(kind="transaction", what="what can't be seen (activity is not shown)", session=session))
        elif in_transaction or session.state != "idle":
            found.append(Holder(kind="transaction", what="an open transaction", session=session))
        else:
            resting[session.pid] = facts[5]
    for pid, classid, objid, objsubid, _ in rows(outside, _ADVISORY, database, own) if sessions else ():
        key = str(classid << 32 | objid) if objsubid == 1 else f"({classid}, {objid})"
        found.append(Holder(kind="advisory lock", what=f"advisory lock {key}", session=sessions.get(pid)))
    owners_known = connection.info.server_version >= _OWNERS_SINCE
    for pid, table in rows(connection, _TEMPORARY) if sessions else ():
        owner = sessions.get(pid) if owners_known else None
        if owner or (sessions and not owners_known):  # else its owner was killed, and nobody uses it
            found.append(Holder(kind="temporary table", what=f"temporary table {table}", session=owner))
    found += _without_session(outside, database)
    listeners = listening(connection, resting)
    for pid, statement in resting.items():
        if pid in listeners if listeners is not None else _LISTEN.match(statement):
            found.append(Holder(kind="listen", what="LISTEN", session=sessions[pid]))
        if _HELD_CURSOR.match(statement):
            found.append(Holder(kind="held cursor", what="a cursor WITH HOLD", session=sessions[pid]))
    held = {holder.session.pid for holder in found if holder.session}
    idle = tuple(session for session in sessions.values() if session.pid not in held)
    return Survey(holders=tuple(found), idle=idle, listeners_seen=listeners is not None)


def holders(connection: Connection) -> tuple[Holder, ...]:
    """The holders alone (see :func:`survey`)."""
    return survey(connection).holders


def idle_sessions(connection: Connection) -> tuple[Session, ...]:
    """The sessions that may be closed alone (see :func:`survey`)."""
    return survey(connection).idle


def _without_session(connection: Connection, database: str) -> list[Holder]:
    return [
        Holder(kind=kind, what=f"{kind} {label!r}" + (f", since {since:%H:%M:%S}" if since else ""))
        for kind, label, since in rows(connection, _WITHOUT_SESSION, database, database, database)
    ]


def _session(facts: list[Any]) -> Session:
    pid, application, client, state, since, query = facts
    return Session(
        pid=pid,
        application=application,
        client=client,
        state=state,
        since=since,
        statement=without_literals(query),
    )


_LITERAL = re.compile(
    r"""(?P<dollar>\$(?:[A-Za-z_]\w*)?\$).*?(?:(?P=dollar)|$)   # $tag$ … $tag$, or cut off
      | [eE]'(?:[^'\\]|\\.|'')*(?:'|$)
      | '(?:[^']|'')*(?:'|$)
      | (?P<name>"(?:[^"]|"")*(?:"|$))
      | (?<![\w$."])\d[\w.]*
      | --[^\n]* | /\*.*?(?:\*/|$)""",
    re.VERBOSE | re.DOTALL,
)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a quoted name may command the terminal of whoever reads it


def without_literals(statement: str) -> str:
    """The beginning of a statement on one line, with ``?`` for every string and number and without comments."""
    bare = _LITERAL.sub(_bare, statement)
    line = _CONTROL.sub("?", " ".join(bare.split()))
    return line if len(line) <= _STATEMENT_CHARACTERS_MAX else line[:_STATEMENT_CHARACTERS_MAX] + "…"


def _bare(match: re.Match[str]) -> str:
    if match["name"]:
        return match[0]
    return " " if match[0].startswith(("--", "/*")) else "?"
