"""The settings that the engine's own sessions begin with: whatever a contract or an application set is not for them.

Limits of time would end the engine's work, and a database can hold traps for a superuser: an operator in ``public``
that is like one of PostgreSQL's own, a view in the place of a sequence, an event trigger whose function the application
replaced. So a superuser's session in a database that applications write to finds PostgreSQL's own objects only, expands
no view of others, and fires no event trigger, from before its first statement.
"""

from __future__ import annotations

from typing import Any

import psycopg

from statefork.adapters.resources.postgres.reading import value
from statefork.engine.errors import ResourceFailed

_OURS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_read_only": "off",
    "search_path": "pg_catalog,pg_temp",
}
_EVENT_TRIGGERS_OFF_SINCE = 170000
_WHOLE_TRANSACTIONS_SINCE = 170000
_NO_VIEWS_SINCE = {15: 150008, 16: 160004}  # it came with corrections of these
_FIRES_ALWAYS = "SELECT quote_ident(evtname) FROM pg_event_trigger WHERE evtenabled IN ('A', 'R') ORDER BY 1 LIMIT 1"


def settings(version: int, *, superuser_inside: bool) -> dict[str, str]:
    """By the server's version, 0 where it is not known yet; ``superuser_inside``: in a database of applications."""
    found = dict(_OURS)
    if version >= _WHOLE_TRANSACTIONS_SINCE:
        found["transaction_timeout"] = "0"
    if superuser_inside:
        found["session_replication_role"] = "replica"  # event triggers, and others, are silent unless they say ALWAYS
        if version >= _EVENT_TRIGGERS_OFF_SINCE:
            found["event_triggers"] = "off"
        if version >= _NO_VIEWS_SINCE.get(version // 10000, _EVENT_TRIGGERS_OFF_SINCE):
            found["restrict_nonsystem_relation_kind"] = "view,foreign-table"
    return found


def options(given: str, wanted: dict[str, str]) -> str:
    """The ``options`` of a connection: what is given already, then ours, which wins."""
    return " ".join([*([given] if given else []), *(f"-c {name}={setting}" for name, setting in wanted.items())])


def refuse_loud_triggers(connection: psycopg.Connection[Any], resource: str) -> None:
    """Before a superuser's statement that event triggers could answer. Raises ResourceFailed where one would.

    Of PostgreSQL 17 and later none does; before, one that fires ALWAYS can't be silenced by a session.
    """
    if connection.info.server_version >= _EVENT_TRIGGERS_OFF_SINCE:
        return
    for (found,) in connection.execute(_FIRES_ALWAYS).fetchall():
        raise ResourceFailed(
            f"{resource}: the event trigger {found} fires always, and would run in the engine's own session",
            hint="Let it fire as others do (ALTER EVENT TRIGGER … ENABLE) in the base, or use PostgreSQL 17 or later",
            resource=resource,
        )


def refuse_privileged(connection: psycopg.Connection[Any], resource: str) -> None:
    """See that a session's user is no superuser and can't become one. Raises ResourceFailed."""
    if reached := value(connection, _POWERS):
        raise ResourceFailed(
            f"{resource}: the role that reads a database could act as {reached}, and nothing is read by it",
            hint="Take these memberships from the resource's common role (its name ends in _app)",
            resource=resource,
        )


_POWERS = """
SELECT string_agg(quote_ident(rolname), ', ' ORDER BY rolname) FROM pg_roles
WHERE pg_has_role(session_user, oid, 'MEMBER') AND (rolsuper OR rolcreaterole OR rolreplication
  OR rolname IN ('pg_execute_server_program', 'pg_write_server_files', 'pg_read_server_files'))
"""
