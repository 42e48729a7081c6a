"""The engine's own connections to a server, and what the server says told as our errors.

A server that is not there, a limit that is reached, a full disk: each is told by name, with what to do now. Messages
never hold a connection string, which may hold a password.

A server that is started again is waited for: by whoever connects, and by whatever may be asked twice.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg import errors as sql_errors

from statefork.adapters.resources.postgres.guarding import options, settings
from statefork.adapters.resources.postgres.options import FORM
from statefork.adapters.resources.postgres.room import full, is_short
from statefork.engine.errors import ContractError, ResourceFailed, ResourceUnreachable, RuntimeDied

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
Address = Mapping[str, str | int]
"""Keywords of a libpq connection string; ``dbname`` is the maintenance database's."""

Statement = str | sql.SQL | sql.Composed

APPLICATION = "statefork"
_LIMITS = (
    (
        "connections for role",
        "connections_per_environment_max",
        "The environment's applications keep too many open: close idle ones, give their pool a smaller size, or raise "
        "the resource's option connections_per_environment_max",
    ),
    (
        "connections for database",
        "frozen",
        "The environment is frozen for a transition: try again when that has ended",
    ),
    (
        "is not currently accepting connections",
        "frozen",
        "The environment is frozen for a transition: try again when that has ended",
    ),
    (
        "too many clients",
        "max_connections",
        "Close idle connections of the applications, or raise the server's limit: option max_connections of the "
        "resource, or of postgresql.conf where the server is somebody else's",
    ),
    (
        "connection slots",
        "max_connections",
        "Close idle connections of the applications, or raise the server's limit: option max_connections of the "
        "resource, or of postgresql.conf where the server is somebody else's",
    ),
)
COMES_BACK_S_MAX = 15.0  # a server that went away is waited for so long
_LOCKS, _LOCKS_FULL = "max_locks_per_transaction", "out of shared memory"
_ASK_AGAIN_S = 0.05
_COMING_BACK = frozenset({"57P01", "57P02", "57P03"})
_NOBODY_THERE = (  # where a connection is refused or lost there is no SQLSTATE
    "Connection refused",
    "Connection reset",
    "No such file or directory",
    "Broken pipe",
    "closed the connection",
    "connection is closed",
    "connection is lost",
    "terminating connection",
    "system is starting up",
    "system is shutting down",
    "in recovery mode",
    "system is not yet accepting",
)
_REFUSED = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "not permitted to log in")
_CLOSED_TO_ALL = "is not currently accepting connections"  # one database, on purpose
_IDLE_KEPT = 4
_CONNECT_S = 10


def nothing_known() -> None:
    """Of a server about which there is nobody to ask."""


def nobody_relieves(since: float) -> bool:
    """Of a server on which there is nobody who may be ended."""
    return False


class Admin:
    """Connections as the user that may create databases and roles. Safe for several threads.

    ``check`` raises RuntimeDied where the server was given up; ``data`` is its directory, where it can be looked at.
    """

    def __init__(
        self,
        resource: str,
        address: Address,
        check: Callable[[], None] = nothing_known,
        data: Path | None = None,
    ) -> None:
        self.resource = resource
        self.address = dict(address)
        self._check = check
        self._data = data
        self._version = 0  # of the server, once it is known
        self._away = False  # waited for in vain, and not seen since
        self.relieve: Callable[[float], bool] = nobody_relieves  # of a full table of locks (see relief.py)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to the maintenance database, kept for the next who needs one."""
        connection = self._take()
        try:
            with self.telling():
                yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < _IDLE_KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def _take(self) -> Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            try:  # the server may have been restarted meanwhile
                connection.execute("")
            except psycopg.Error:
                connection.close()
            else:
                return connection

    def connect(self, database: str = "", **keywords: str | int) -> Connection:
        """A connection of the caller's own, into which no database brings anything (see guarding.py).

        Raises ResourceFailed, RuntimeDied when the server does not come back.
        """
        if database and not self._version:
            with self.connection():
                pass
        address = {**self.address, **({"dbname": database} if database else {}), **keywords}
        connection = self._connected(address, superuser_inside=bool(database))
        if not self._version:  # in the maintenance database, which no application writes to
            self._version = connection.info.server_version
            late = settings(self._version, superuser_inside=False)
            with self.telling():
                connection.execute("; ".join(f"SET {name} = {setting}" for name, setting in late.items()).encode())
        return connection

    def login(self, database: str, user: str, password: str) -> Connection:
        """A connection of another user than ours. Raises as ``connect``."""
        address = {**self.address, "dbname": database, "user": user, "password": password}
        address.pop("options", None)  # they may be a superuser's
        return self._connected(address, superuser_inside=False)

    def _connected(self, address: Address, *, superuser_inside: bool) -> Connection:
        wanted = settings(self._version, superuser_inside=superuser_inside)
        guarded = {**address, "options": options(str(address.get("options", "")), wanted)}
        return self.patiently(lambda: connect(self.resource, guarded))

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Turn errors into ours (see ``told``); a server that went away on a full disk is told as a full disk."""
        try:
            with told(self.resource):
                yield
        except RuntimeDied as died:
            if not is_short(self._data):
                raise
            raise full(self.resource, f"the server ended there: {died.message}") from died.__cause__

    def patiently(self, work: Callable[[], T]) -> T:
        """Do what may be done twice, and again while its server is being started again.

        Raises RuntimeDied when it did not come back in time, ResourceFailed where its disk is full. Who asks after
        that is told at once.
        """
        give_up = 0.0
        while True:
            began = time.monotonic()
            try:
                with self.telling():
                    done = work()
            except ResourceFailed as error:
                if error.facts.get("limit") == _LOCKS and self.relieve(began):
                    continue
                if not was_lost(error):
                    raise
                self._check()
                now = time.monotonic()
                give_up = give_up or now + (0.0 if self._away else COMES_BACK_S_MAX)
                if now >= give_up:
                    self._away = True
                    raise _stayed_away(error) from error
            else:
                self._away = False
                return done
            time.sleep(_ASK_AGAIN_S)

    def run(self, *statements: Statement, again: bool = False) -> None:
        """Run statements, each on its own; ``again`` where they may be run twice, should the server go meanwhile."""

        def work() -> None:
            with self.connection() as connection:
                for statement in statements:
                    self._execute(connection, _composed(statement))

        if again:
            self.patiently(work)
        else:
            work()

    def together(self, *statements: Statement) -> None:
        """Run statements in one transaction and one round trip."""
        with self.connection() as connection:
            self._execute(connection, sql.SQL("; ").join(map(_composed, statements)))

    def _execute(self, connection: Connection, statement: sql.SQL | sql.Composed) -> None:
        """Execute it; again when it was rolled back for want of locks, and whoever had too many was ended."""
        while True:
            began = time.monotonic()
            try:
                connection.execute(statement)
            except sql_errors.OutOfMemory as error:
                if _LOCKS_FULL not in str(error) or not self.relieve(began):
                    raise
            else:
                return

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of a query, which changes nothing."""

        def work() -> list[tuple[Any, ...]]:
            with self.connection() as connection:
                return connection.execute(query.encode(), parameters or None).fetchall()

        return self.patiently(work)

    def close(self) -> None:
        """Close what is idle. It can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def connect(resource: str, address: Address) -> Connection:
    """Connect in autocommit mode. Raises ResourceFailed, RuntimeDied."""
    keywords: dict[str, Any] = {"connect_timeout": _CONNECT_S, "application_name": APPLICATION, **address}
    with told(resource):
        return psycopg.connect(autocommit=True, **keywords)


def address_of(resource: str, option: str, dsn: str) -> dict[str, str | int]:
    """What a connection string says. Raises ContractError naming the option that it comes from."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ContractError(  # without the cause, which may show the password
            f"resources.{resource}.{option}: the connection string can't be read",
            hint=f"{FORM[0].upper()}{FORM[1:]}",
            key=f"resources.{resource}.{option}",
        ) from None
    return {key: value for key, value in given.items() if value is not None}


def reach(resource: str, address: Address, option: str) -> Connection:
    """Connect to a server of somebody else's. Raises ResourceUnreachable with what to look at; ResourceFailed."""
    try:
        return connect(resource, address)
    except ResourceFailed as error:
        cause = error.__cause__
        if error.facts.get("limit") or not isinstance(cause, psycopg.OperationalError):
            raise
        what, hint = _why_not(str(cause), address)
        said = " ".join((cause.diag.message_primary or str(cause)).split())
        raise ResourceUnreachable(
            f"{resource}: the database server of {option} {what}: {said}", hint=hint, resource=resource
        ) from cause


def _why_not(said: str, address: Address) -> tuple[str, str]:
    """What became of a login, and what is to be done. PostgreSQL gives no code for it, only words."""
    if re.search(r'database ".*" does not exist', said):
        database = address.get("dbname", "")
        return "has no such database", f"Make it (createdb {database}), or name another one in the connection string"
    if any(words in said for words in _REFUSED) or re.search(r'role ".*" does not exist', said):
        return "refuses the login", "Check user and password of the connection string, and the server's pg_hba.conf"
    return "does not answer", "Check that it runs, and host and port of the connection string"


def _composed(statement: Statement) -> sql.SQL | sql.Composed:
    return sql.SQL(statement) if isinstance(statement, str) else statement


@contextlib.contextmanager
def told(resource: str) -> Iterator[None]:
    """Turn an error of the server or of the connection into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise failure(resource, error) from error


def failure(resource: str, error: psycopg.Error) -> ResourceFailed:
    """The error of ours that says what happened and what to do now."""
    said = (error.diag.message_primary or str(error) or type(error).__name__).strip()
    for words, limit, hint in _LIMITS:
        if words in said:
            return ResourceFailed(f"{resource}: no more connections: {said}", hint=hint, resource=resource, limit=limit)
    if _LOCKS_FULL in said:
        return ResourceFailed(
            f"{resource}: the server's table of locks is full: {_LOCKS_FULL}",
            hint="An application holds very many locks (advisory ones, mostly): close its sessions, retire its "
            "environment, or raise the server's max_locks_per_transaction",
            resource=resource,
            limit=_LOCKS,
        )
    if isinstance(error, sql_errors.DiskFull) or "No space left" in said:
        return full(resource, said)
    if isinstance(error, sql_errors.InsufficientPrivilege):
        return ResourceFailed(
            f"{resource}: the server refuses: {said}",
            hint="The user of the connection string must be a superuser",
            resource=resource,
        )
    if _is_gone(error, said):
        return RuntimeDied(
            f"{resource}: the database server does not answer: {said}",
            hint="statefork starts its own server again by itself; an existing server must be started by who runs it",
            resource=resource,
        )
    return ResourceFailed(f"{resource}: the server says: {said}", resource=resource, sqlstate=error.sqlstate)


def _is_gone(error: psycopg.Error, said: str) -> bool:
    if not isinstance(error, psycopg.OperationalError) or _CLOSED_TO_ALL in said:
        return False
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57")


def was_lost(error: ResourceFailed) -> bool:
    """Whether the server went away, or is not there yet: it may come back."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.OperationalError) or _CLOSED_TO_ALL in str(cause):
        return False
    if cause.sqlstate is not None:
        return cause.sqlstate in _COMING_BACK
    return any(words in str(cause) for words in _NOBODY_THERE)


def _stayed_away(error: ResourceFailed) -> ResourceFailed:
    """After the wait: nobody above needs to wait again."""
    message = f"{error.message}; it did not come back within {COMES_BACK_S_MAX:g} s"
    return type(error)(message, hint=error.hint, **error.facts)
