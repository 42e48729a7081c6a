"""Making databases out of databases: versions, branches with the role that opens them, and their end."""

from __future__ import annotations

import time

from psycopg import errors as sql_errors
from psycopg import sql

from statefork.adapters.resources.postgres import roles
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.postgres.mark import mark, mark_of_shut, sequences_in
from statefork.adapters.resources.postgres.naming import BRANCH, Names
from statefork.adapters.resources.postgres.roles import Opened
from statefork.adapters.resources.postgres.room import Reserve, require_room
from statefork.adapters.resources.postgres.sessions import end_sessions, let_end
from statefork.adapters.resources.postgres.ways import Ways
from statefork.engine.errors import ResourceFailed

INVALID = -2  # datconnlimit of a database whose removal was interrupted
_GONE = "could not find tuple for role"  # two sessions that drop one role at once


class Cloner:
    """Copies and removes databases. Safe for several threads."""

    def __init__(self, admin: Admin, names: Names, ways: Ways, making: Making, connections_max: int) -> None:
        self._admin = admin
        self._names = names
        self._ways = ways
        self._connections_max = connections_max
        self._making = making
        self._sequences: dict[str, str] = {}  # by version, as its mark tells them: what nobody writes stays

    def copy(self, source: str, name: str, *, template: bool) -> None:
        """A copy to which nobody can connect. The source must have no session. What fails leaves nothing."""
        require_room(self._admin.resource, self._ways.data)
        way = self._ways.next()
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {} ALLOW_CONNECTIONS false IS_TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(source), sql.SQL(way.strategy), sql.SQL(str(template).lower())
        )
        setting = [sql.SQL("SET file_copy_method = {}").format(sql.SQL(way.method))] if way.method else []
        try:
            began = time.perf_counter()
            with self._making.one():
                self._admin.run(*setting, create)
            self._ways.took(way, time.perf_counter() - began, name)
        except BaseException:
            self.drop(name)
            raise

    def branch(self, version: str, source: str = "", *, enter: bool = False) -> Opened:
        """A copy that its own new role, and nobody else, can open.

        ``source``: a branch of which the version is being made, and into which nobody comes meanwhile. With ``enter``
        the engine is in it for a moment: what its first session reads from the disk the next one finds in memory.
        """
        name, secret = self._names.new(BRANCH), roles.new_secret()
        self.copy(source or version, name, template=False)
        try:
            known = self._mark_of_new(name, version)
            password = roles.verifier(self._admin, name, secret)
            self._admin.together(
                *roles.making(name, password, self._names.owner, self._connections_max),
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name)),
            )
            mark = known or self._first_mark(name, version)
            if enter:
                self._admin.connect(name).close()
            return Opened(database=name, secret=secret, mark=mark)
        except BaseException:
            self.drop(name)
            raise

    def sealed(self, version: str, mark: str) -> None:
        """A version is made of a branch that has this mark."""
        self._sequences[version] = sequences_in(mark)

    def _mark_of_new(self, name: str, source: str) -> str:
        """Of a copy that nobody was in yet; empty where its sequences are not known."""
        sequences = self._sequences.get(source, "")
        if not sequences:
            return ""
        with self._admin.connection() as connection:
            return mark_of_shut(connection, name, sequences)

    def _first_mark(self, name: str, source: str) -> str:
        found = self.mark(name)
        self.sealed(source, found)
        return found

    def warm(self, version: str) -> None:
        """Be in a version once: the server writes down there what every session begins with, and all copies have it.

        It forgets that when it is started again. A first session takes 10 ms without, 4 with it.
        """
        name = sql.Identifier(version)
        self._admin.run(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name), again=True)
        try:
            self._admin.connect(version).close()
        finally:
            self._admin.run(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name), again=True)
        end_sessions(self._admin, version)

    def new_secret(self, name: str) -> str:
        """Another secret for a branch's role; it may log in again."""
        secret = roles.new_secret()
        self._admin.run(roles.opening(name, roles.verifier(self._admin, name, secret)))
        return secret

    def mark(self, name: str) -> str:
        """The write mark of a database, which must let us in."""
        connection = self._admin.connect(name)
        try:
            with self._admin.telling():
                let_end(connection)
                return mark(connection)
        finally:
            connection.close()

    def drop(self, name: str) -> None:
        """Remove a database, its sessions and its role. Idempotent."""
        if self._ways.own and self._ways.data is not None:
            Reserve(self._ways.data).lend()
        found = self._admin.rows("SELECT datistemplate, datconnlimit FROM pg_database WHERE datname = %s", name)
        if found:
            database = sql.Identifier(name)
            template, limit = found[0]
            if template and limit != INVALID:  # to alter an invalid one would end the connection
                self._admin.run(sql.SQL("ALTER DATABASE {} IS_TEMPLATE false").format(database))
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database)
            try:
                self._admin.run(drop)
            except ResourceFailed as error:
                if not isinstance(error.__cause__, sql_errors.ObjectInUse):
                    raise
                self._roll_back_prepared(name)
                self._admin.run(drop)
        self.drop_role(name)
        self._sequences.pop(name, None)

    def _roll_back_prepared(self, name: str) -> None:
        """A prepared transaction keeps a database from being removed, and survives every session."""
        self._admin.run(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name)))
        connection = self._admin.connect(name)
        try:
            left = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            for (gid,) in left.fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        finally:
            connection.close()

    def drop_role(self, name: str) -> None:
        """Remove a branch's role; one that still owns something in a version can't log in any more. Idempotent."""
        if not self._admin.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", name):
            return
        try:
            self._admin.run(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
        except ResourceFailed as error:
            if _GONE in error.message:  # whoever removes what killed backends left was quicker
                return
            if not isinstance(error.__cause__, sql_errors.DependentObjectsStillExist):
                raise
            self._admin.run(sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL").format(sql.Identifier(name)))
