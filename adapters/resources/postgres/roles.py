"""The role that opens a branch: it logs in with a secret of its own and acts as the owner of everything."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec
from psycopg import errors as sql_errors
from psycopg import sql

from statefork.adapters.resources.postgres.connecting import Admin
from statefork.engine.errors import ResourceFailed

_SECRET_BYTES = 24
_SET_FOR = """
SELECT d.datname FROM pg_catalog.pg_authid r JOIN pg_catalog.pg_db_role_setting s ON s.setrole = r.oid
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase WHERE r.rolname = %s
UNION ALL SELECT NULL FROM pg_catalog.pg_authid r WHERE r.rolname = %s AND r.rolpassword IS NOT NULL
"""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A branch's database. The secret, of its role, is kept in memory and nowhere else; empty: not given out yet."""

    database: str
    secret: str
    mark: str  # right after it was made

    def __repr__(self) -> str:
        return f"Opened({self.database})"


def new_secret() -> str:
    """For one branch."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def verifier(admin: Admin, role: str, secret: str) -> sql.Literal:
    """What the server keeps instead of a secret, made here: no statement and no log ever holds the secret."""
    with admin.connection() as connection:
        made = connection.pgconn.encrypt_password(secret.encode(), role.encode(), b"scram-sha-256")
    return sql.Literal(made.decode())


def forget_settings(admin: Admin, owner: str) -> None:
    """Take from the common role what applications that act as it gave it, for others to see: settings, a password."""
    name = sql.Identifier(owner)
    for (database,) in admin.rows(_SET_FOR, owner, owner):
        if database is None:
            admin.run(
                sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(name),
                sql.SQL("ALTER ROLE {} RESET ALL").format(name),
            )
            continue
        try:
            admin.run(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET ALL").format(name, sql.Identifier(database)))
        except ResourceFailed as error:
            if not isinstance(
                error.__cause__, sql_errors.InvalidCatalogName
            ):  # it was removed just now, settings and all
                raise


def making(role: str, password: sql.Composable, owner: str, connections_max: int) -> Iterator[sql.Composed]:
    """The statements that make a branch's role, and give it the database of its name."""
    name = sql.Identifier(role)
    yield sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} CONNECTION LIMIT {} IN ROLE {}").format(
        name, password, sql.Literal(connections_max), sql.Identifier(owner)
    )
    yield sql.SQL("ALTER ROLE {} SET role = {}").format(name, sql.Identifier(owner))
    yield sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name)
    yield sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, name)
    yield sql.SQL("GRANT CREATE, TEMPORARY ON DATABASE {} TO {}").format(name, sql.Identifier(owner))


def making_reader(role: str, password: sql.Composable, owner: str) -> Iterator[sql.Composed]:
    """The statements that make the role which reads a database: it sees what the owner has, and every row of it."""
    name = sql.Identifier(role)
    yield sql.SQL(
        "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS PASSWORD {} IN ROLE {}"
    ).format(name, password, sql.Identifier(owner))
    yield sql.SQL("ALTER ROLE {} SET lc_messages = 'C'").format(name)
    yield sql.SQL("ALTER ROLE {} SET lo_compat_privileges = on").format(name)  # large objects, whoever made them


def opening(role: str, password: sql.Composable) -> sql.Composed:
    """The statement that lets a branch's role log in, with this secret only."""
    return sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), password)
