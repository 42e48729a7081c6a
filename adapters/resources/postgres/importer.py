"""The role that a base is imported as: it logs in, acts as the owner of everything, and may do nothing else.

SQL can leave a role that it was only set to (SET ROLE NONE), never the one that logged in. So whatever a base says, no
statement of it is a superuser's; what needs one (extensions, event triggers) is run here, in a session of its own, one
statement at a time by the protocol that takes no second one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import conninfo, sql

from statefork.adapters.resources.postgres.roles import new_secret
from statefork.adapters.resources.postgres.sqlfile import Aside

SETTINGS = {  # an import takes as long as it takes
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_read_only": "off",
}
_ENDED_MS_MAX = 10_000
_NOT_ITS = ("user", "password", "passfile", "options", "application_name", "dbname", "service", "servicefile")


class Refusal(Exception):
    """A statement that the server refuses, and its words."""

    def __init__(self, statement: Aside, said: str) -> None:
        super().__init__(said)
        self.statement = statement
        self.said = said


@contextlib.contextmanager
def importer(target: str, owner: str) -> Iterator[str]:
    """A connection string for ``target`` as a role without rights, named like the database, gone when the body ends.

    It is a member of ``owner``, and inherits nothing: it must say SET ROLE. What it made as itself becomes the owner's.
    """
    with _superuser(target) as connection:
        role, secret = connection.info.dbname, new_secret()
        address = {key: text for key, text in connection.info.get_parameters().items() if key not in _NOT_ITS}
        _remove(connection, role, owner)
        verifier = connection.pgconn.encrypt_password(secret.encode(), role.encode(), b"scram-sha-256").decode()
        for statement in (
            "ALTER SCHEMA public OWNER TO {owner}",
            "CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT "
            "PASSWORD {verifier} IN ROLE {owner}",
            "GRANT CONNECT ON DATABASE {role} TO {role}",
        ):
            connection.execute(
                sql.SQL(statement).format(
                    role=sql.Identifier(role), owner=sql.Identifier(owner), verifier=sql.Literal(verifier)
                )
            )
    base = conninfo.make_conninfo("", **{**address, "dbname": role, "user": role, "password": secret})
    try:
        yield base
    except BaseException:
        with contextlib.suppress(psycopg.Error), _superuser(target) as connection:  # whoever made the database drops it
            _remove(connection, role, owner)
        raise
    with _superuser(target) as connection:
        _remove(connection, role, owner)


def run_aside(target: str, owner: str, statements: Sequence[Aside]) -> set[str]:
    """Run them as the superuser; the schemas that were made for extensions. Raises Refusal."""
    made: set[str] = set()
    if not statements:
        return made
    with psycopg.connect(target, autocommit=True, options=_options()) as connection:
        for statement in statements:
            try:
                if statement.schema and _make_schema(connection, statement.schema, owner):
                    made.add(statement.schema)
                connection.execute(statement.text, prepare=True)
            except psycopg.Error as error:
                raise Refusal(statement, error.diag.message_primary or str(error)) from error
    return made


def _make_schema(connection: psycopg.Connection[Any], schema: str, owner: str) -> bool:
    if connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)).fetchone():
        return False
    statement = sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(sql.Identifier(schema), sql.Identifier(owner))
    connection.execute(statement)
    return True


def _superuser(target: str) -> psycopg.Connection[Any]:
    return psycopg.connect(target, autocommit=True, options=_options(search_path="pg_catalog"))


def _options(**more: str) -> str:
    return " ".join(f"-c {name}={value}" for name, value in {**SETTINGS, **more}.items())


def _remove(connection: psycopg.Connection[Any], role: str, owner: str) -> None:
    if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
        return
    names = {"role": sql.Identifier(role), "owner": sql.Identifier(owner)}
    connection.execute(sql.SQL("ALTER ROLE {role} NOLOGIN").format(**names))
    connection.execute(
        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE usename = %s", (_ENDED_MS_MAX, role)
    )
    for statement in ("REASSIGN OWNED BY {role} TO {owner}", "DROP OWNED BY {role}", "DROP ROLE {role}"):
        connection.execute(sql.SQL(statement).format(**names))
