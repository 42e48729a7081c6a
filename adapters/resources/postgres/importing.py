"""A base as a database of a server: made, filled, frozen, closed."""

from __future__ import annotations

from pathlib import Path

from psycopg import conninfo, sql

from statefork.adapters.resources.postgres.base import Source, fill, freeze
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.cut import visiting
from statefork.adapters.resources.postgres.sessions import end_sessions
from statefork.adapters.resources.reflink import Pulse


def import_into(admin: Admin, database: str, owner: str, source: Source, programs: Path, pulse: Pulse) -> None:
    """Fill a database that is new, empty and closed, and close it again. Raises ContractError with the place."""
    open_to_us(admin, database, owner)
    fill(source, conninfo.make_conninfo("", **{**admin.address, "dbname": database}), owner, programs, pulse)
    with visiting(admin, database) as connection:
        freeze(connection)
    admin.run(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(database)))
    end_sessions(admin, database)


def open_to_us(admin: Admin, database: str, owner: str) -> None:
    """Nobody but the engine's user may enter; the owner of the objects may make some."""
    name = sql.Identifier(database)
    admin.together(
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name),
        sql.SQL("GRANT CREATE, TEMPORARY ON DATABASE {} TO {}").format(name, sql.Identifier(owner)),
        sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name),
    )


def make_owner(admin: Admin, owner: str, *, own: bool) -> None:
    """The role that owns everything and that nobody logs in as; on our own server nobody else has a place to go."""
    if not admin.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", owner):
        admin.run(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(owner)))
    if own:
        admin.run("REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC")
