"""``psycopg``, sync and async: whatever server is asked for, the environment's own database is connected to.

Everything that such a connection does goes through its ``wait``, which passes the binding's gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

from statefork.adapters.resources.web.bound import Bound, NoEnvironment, current, store_lost
from statefork.adapters.resources.web.python_stack.connections import NAMES, Address, DriverSession

_WHERE = frozenset(
    {
        *("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "sslmode", "sslcert"),
        *("sslkey", "sslrootcert", "require_auth", "channel_binding", "target_session_attrs", "load_balance_hosts"),
    }
)
"""Parameters of a connection that say where and as whom: the store says that."""
_PYTHON = frozenset({"autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"})
_IDLE, _UNKNOWN = 0, 4  # of libpq's transaction status


class _Connection:
    """Mixed into the connection class that the application wants (see connections.Raw)."""

    sf_session: DriverSession | None = None
    pgconn: Any

    def sf_is_open(self) -> bool:
        return not self.closed  # type: ignore[attr-defined]  # mixed in

    def sf_in_transaction(self) -> bool:
        return self.pgconn.transaction_status not in (_IDLE, _UNKNOWN)

    def sf_close(self) -> None:
        self._closed = True  # so that it is closed, and not lost
        self.pgconn.finish()

    def sf_interrupt(self) -> None:
        self.cancel()  # type: ignore[attr-defined]  # mixed in


class _Sync(_Connection):
    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self.sf_session is None:
            return super().wait(*args, **kwargs)  # type: ignore[misc]  # mixed in
        with self.sf_session.use():
            return super().wait(*args, **kwargs)  # type: ignore[misc]  # mixed in


class _Async(_Connection):
    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self.sf_session is None:
            return await super().wait(*args, **kwargs)  # type: ignore[misc]  # mixed in
        self.sf_session.check_owner()
        async with using(self.sf_session):
            with self.sf_session.telling_loss():
                return await super().wait(*args, **kwargs)  # type: ignore[misc]  # mixed in


def _set(moved: asyncio.Future[None]) -> None:
    if not moved.done():
        moved.set_result(None)


@contextlib.asynccontextmanager
async def using(session: DriverSession) -> AsyncIterator[None]:
    """As bound.using, on an event loop: others go on while this waits at the gate."""
    loop = asyncio.get_running_loop()
    while True:
        moved = loop.create_future()

        def tell(moved: asyncio.Future[None] = moved) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(_set, moved)

        if session.bound.try_use(session, tell):
            break
        await moved
    try:
        yield
    finally:
        session.bound.end_use(session)


_classes: dict[type[Any], type[Any]] = {}


def _mixed(mixin: type[Any], base: type[Any]) -> type[Any]:
    if issubclass(base, mixin):
        return base
    if base not in _classes:
        _classes[base] = type(base.__name__, (mixin, base), {})
    return _classes[base]


def _told(conninfo: str, options: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Of what an application asks for: the database's name, what else libpq is told, and what Python is."""
    from psycopg.conninfo import conninfo_to_dict

    python = {name: options.pop(name) for name in _PYTHON & set(options)}
    given = conninfo_to_dict(conninfo, **options)
    name = str(given.get("dbname") or "")
    return name, {key: value for key, value in given.items() if key not in _WHERE}, python


def _target(kind: str, address: Address) -> dict[str, Any]:
    if "name" not in address:
        raise NoEnvironment(f"store {kind!r} is a file, and psycopg was asked to connect to it")
    names = {"name": "dbname", "user": "user", "password": "password", "host": "host", "port": "port"}
    return {libpq: address[ours] for ours, libpq in names.items() if ours in address}


@contextlib.contextmanager
def _telling_unreachable(kind: str) -> Any:
    from psycopg import OperationalError

    try:
        yield
    except OperationalError as error:
        store_lost(f"database {kind!r} can't be reached: {error}")
        raise


def open_store(bound: Bound, kind: str, address: Address) -> Any:
    """Connect to a store, as the running code's binding, to see that it is there."""
    import psycopg

    return _open(psycopg.Connection, bound, kind, address, {})


def _open(base: type[Any], bound: Bound, kind: str, address: Address, told: dict[str, Any]) -> Any:
    session = DriverSession(bound, f"database {kind!r}")
    with bound.using(session), _telling_unreachable(kind):
        raw = _originals[False](_mixed(_Sync, base), "", **told, **_target(kind, address))
        raw.sf_session = session
        session.is_of(raw)
    return raw


def connect(cls: type[Any], /, conninfo: str = "", **options: Any) -> Any:
    """``Connection.connect``, to the store that the name leads to."""
    bound = current()
    name, told, python = _told(conninfo, options)
    kind, address = NAMES.find(bound, name)
    return _open(cls, bound, kind, address, {**told, **python})


async def connect_async(cls: type[Any], /, conninfo: str = "", **options: Any) -> Any:
    """``AsyncConnection.connect``, to the store that the name leads to."""
    bound = current()
    name, told, python = _told(conninfo, options)
    kind, address = NAMES.find(bound, name)
    session = DriverSession(bound, f"database {kind!r}")
    async with using(session):
        with _telling_unreachable(kind):
            raw = await _originals[True](_mixed(_Async, cls), "", **told, **python, **_target(kind, address))
        raw.sf_session = session
        session.is_of(raw)
    return raw


_originals: dict[bool, Any] = {}


def install() -> None:
    """Patch the driver, if it is there, before the application is imported."""
    for variable in ("PGHOSTADDR", "PGSERVICE", "PGSERVICEFILE", "PGOPTIONS"):
        os.environ.pop(variable, None)  # libpq would take them where the store says nothing
    if find_spec("psycopg") is None:
        return
    import psycopg

    _originals[False] = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]  # of a class method
    _originals[True] = psycopg.AsyncConnection.connect.__func__  # type: ignore[attr-defined]  # the same
    psycopg.Connection.connect = classmethod(connect)  # type: ignore[assignment,method-assign]  # a patch
    psycopg.AsyncConnection.connect = classmethod(connect_async)  # type: ignore[assignment,method-assign]  # a patch
    psycopg.connect = psycopg.Connection.connect
