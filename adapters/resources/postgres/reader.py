"""Reading a copy of a database as a role that has no power: what is in it may run code of the application's.

A value's text is whatever a cast says that the application made, an index or an order may call its functions. So the
contents are read in a copy of their own by a role of its own, which logs in with a secret of its own: neither
``RESET ROLE`` nor anything else in such a function leads to more. The engine's own user only prepares the copy, by
statements that evaluate nothing of the database's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import errors as sql_errors
from psycopg import sql

from statefork.adapters.resources.postgres import roles
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.cut import visiting
from statefork.adapters.resources.postgres.definitions import OURS
from statefork.adapters.resources.postgres.guarding import refuse_loud_triggers, refuse_privileged
from statefork.adapters.resources.postgres.reading import Connection
from statefork.engine.errors import ResourceFailed

_HIDDEN_SCHEMAS = f"""
SELECT format('USAGE ON SCHEMA %%I', n.nspname) FROM pg_namespace n
WHERE {OURS} AND NOT has_schema_privilege(%(reader)s, n.oid, 'USAGE') ORDER BY 1
"""
_HIDDEN = f"""
SELECT format('SELECT ON TABLE %%I.%%I', n.nspname, c.relname) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm', 'S') AND c.relpersistence <> 't' AND {OURS}
AND NOT has_table_privilege(%(reader)s, c.oid, 'SELECT') ORDER BY 1
"""
_CATALOGS = "GRANT SELECT ON pg_catalog.pg_user_mapping, pg_catalog.pg_largeobject TO {}"


@contextmanager
def as_reader(admin: Admin, database: str, reader: str, owner: str) -> Iterator[Connection]:
    """A session in a copy that nobody else uses, of a role that is made for it. Whoever removes the copy removes both.

    Raises ResourceFailed where the database's own code asks for more than a reader may do.
    """
    name, role, secret = sql.Identifier(database), sql.Identifier(reader), roles.new_secret()
    admin.together(
        *roles.making_reader(reader, roles.verifier(admin, reader, secret), owner),
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, role),
        sql.SQL("ALTER DATABASE {} CONNECTION LIMIT -1 ALLOW_CONNECTIONS true").format(name),
    )
    with visiting(admin, database) as ours:
        refuse_loud_triggers(ours, admin.resource)
        _show_all(ours, reader)
    connection = admin.login(database, reader, secret)
    try:
        with admin.telling(), _overreach_told(admin.resource):
            refuse_privileged(connection, admin.resource)
            yield connection
    finally:
        connection.close()


def _show_all(ours: Connection, reader: str) -> None:
    """Let the reader see what the owner does not, such as an extension's. What it is given is no content."""
    role = sql.Identifier(reader)
    ours.execute(sql.SQL(_CATALOGS).format(role))
    for query in (_HIDDEN_SCHEMAS, _HIDDEN):
        for (what,) in ours.execute(query.encode(), {"reader": reader}).fetchall():
            ours.execute(sql.SQL("GRANT {} TO {}").format(sql.SQL(what), role))


@contextmanager
def _overreach_told(resource: str) -> Iterator[None]:
    try:
        yield
    except (sql_errors.InsufficientPrivilege, sql_errors.ReadOnlySqlTransaction) as error:
        raise ResourceFailed(
            f"{resource}: reading the database asks for more than a reader may do: {error.diag.message_primary}",
            hint="Something in it (a cast, a type or an operator of its own) does more than give a value: look there",
            resource=resource,
            sqlstate=error.sqlstate,
        ) from error
