"""Database connections: one wrapper per (thread, environment + epoch, alias), refused at connect without a binding.

Refusing at lookup would be too early: Django reads ``connection.ops`` and ``features`` while models are defined.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from statefork.adapters.resources.web.bound import CURRENT, Bound, NoEnvironment, Stores, current, store_lost

_SQLITE = "django.db.backends.sqlite3"
_COMES_BACK_S_MAX = 15.0  # a server that died is started again in this time
_ASK_AGAIN_S = 0.05


def store_name(kind: str, alias: str) -> str:
    """The contract's name for an alias: ``database`` for the default one, ``database.<alias>`` for others."""
    return kind if alias == "default" else f"{kind}.{alias}"


class DatabaseSession:
    """A wrapper seen from outside its thread (see bound.Session)."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper

    def is_open(self) -> bool:
        """Whether the driver's connection is open."""
        return self.wrapper.connection is not None

    def busy(self) -> str:
        """An open transaction would be lost. The driver is asked too: Django leaves its block before it commits."""
        raw = self.wrapper.connection
        if raw is None or getattr(raw, "closed", False):  # psycopg's was lost: there is nothing left to lose
            return ""
        driver_in_transaction = getattr(raw, "in_transaction", None)  # sqlite3
        if driver_in_transaction is None and hasattr(raw, "info"):
            driver_in_transaction = raw.info.transaction_status != 0  # psycopg: 0 is idle
        if self.wrapper.in_atomic_block or driver_in_transaction:
            return f"a transaction is open on database {self.wrapper.alias!r}"
        return ""

    def close_now(self) -> None:
        """Django's own close, from whichever thread."""
        self.wrapper.inc_thread_sharing()
        try:
            self.wrapper.close()
        finally:
            self.wrapper.dec_thread_sharing()

    def interrupt(self) -> None:
        """End a running statement, where the driver can do that from another thread."""
        raw = self.wrapper.connection
        stop = getattr(raw, "interrupt", None) or getattr(raw, "cancel", None)
        if stop is not None:
            stop()


def _bound_class(base: type[Any]) -> type[Any]:
    """``base``, a backend's DatabaseWrapper, with every use of the connection behind the binding's gate."""

    class BoundDatabaseWrapper(base):  # type: ignore[misc]  # the base is known at run time only
        def bind(self, bound: Bound) -> None:
            self.statefork_bound = bound
            self.statefork_session = DatabaseSession(self)
            self.execute_wrappers.append(self._through_gate)

        def _using(self) -> AbstractContextManager[None]:
            if CURRENT.get() is not self.statefork_bound:  # a module kept the connection of whoever imported it
                raise NoEnvironment(f"this connection to {self.alias!r} belongs to {self.statefork_bound.identity}")
            return self.statefork_bound.using(self.statefork_session)

        def connect(self) -> None:
            give_up = time.monotonic() + _COMES_BACK_S_MAX
            while True:
                try:
                    with self._using():
                        super().connect()
                    return
                except self.Database.OperationalError as error:
                    if self.vendor == "sqlite":  # a file: nobody serves it
                        raise
                    if time.monotonic() > give_up or not _may_come_back(error):
                        store_lost(f"database {self.alias!r} can't be reached: {error}")
                        raise
                time.sleep(_ASK_AGAIN_S)  # outside of the gate: it may be closed meanwhile

        def _commit(self) -> None:
            with self._using(), self._telling_loss():
                super()._commit()

        def _rollback(self) -> None:
            with self._using(), self._telling_loss():
                super()._rollback()

        @contextlib.contextmanager
        def _telling_loss(self) -> Iterator[None]:
            """A session that its server ended, unless we cut it off: whoever caused the request must hear of it."""
            try:
                yield
            except Exception as error:
                if getattr(self.connection, "closed", False) and self.statefork_bound.gate != "cut":
                    store_lost(f"database {self.alias!r} was lost: {error}")
                raise

        def _through_gate(self, execute: Any, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
            with self._using():
                cursor = context["cursor"]
                if self.connection is None or getattr(cursor.cursor, "connection", self.connection) != self.connection:
                    # closed for a snapshot after the cursor was made: outside a transaction nothing is lost by anew
                    self.ensure_connection()
                    cursor.cursor = self.create_cursor()
                with self._telling_loss():
                    return execute(sql, params, many, context)

    return BoundDatabaseWrapper


def _may_come_back(error: Any) -> bool:
    """Of PostgreSQL's drivers: nobody listens, or whoever does is starting or stopping."""
    state = getattr(error, "sqlstate", None)
    return state in _COMING_BACK or (state is None and any(words in str(error) for words in _NOBODY_THERE))


_COMING_BACK = frozenset({"57P01", "57P02", "57P03"})
_NOBODY_THERE = (
    "Connection refused",
    "No such file or directory",
    "closed the connection",
    "system is starting up",
    "system is shutting down",
    "in recovery mode",
    "not yet accepting",
)


_classes: dict[type[Any], type[Any]] = {}


def _open(alias: str, settings: dict[str, Any], bound: Bound) -> Any:
    from django.db.utils import load_backend

    address = bound.stores.get(store_name("database", alias))
    if address is None:
        raise NoEnvironment(f"database {alias!r} is not a store of this environment: declare it in the contract")
    options = copy.deepcopy(settings)
    if "path" in address:
        options["NAME"] = str(address["path"])
    else:
        options.update({key.upper(): value for key, value in address.items() if key.upper() in _SERVER_KEYS})
    base = load_backend(options["ENGINE"]).DatabaseWrapper
    wrapper = _classes.setdefault(base, _bound_class(base))(options, alias)
    wrapper.bind(bound)
    bound.sessions.add(wrapper.statefork_session)
    bound.local.__dict__.setdefault("sessions", []).append(wrapper.statefork_session)
    return wrapper


_SERVER_KEYS = frozenset({"NAME", "USER", "PASSWORD", "HOST", "PORT"})


def refuse_connect(*_: Any, **__: Any) -> None:
    """What connecting does without a binding."""
    current()
    raise NoEnvironment("this connection was made outside of any environment")


def install() -> None:
    """Patch ``django.db.connections``."""
    from django.db.utils import ConnectionHandler

    unbound = ConnectionHandler.__getitem__

    def getitem(self: Any, alias: str) -> Any:
        bound = CURRENT.get()
        if bound is None:
            connection = unbound(self, alias)
            connection.connect = refuse_connect
            return connection
        mine = bound.local.__dict__.setdefault("databases", {})
        if alias not in mine:
            if alias not in self.settings:
                raise self.exception_class(f"The connection {alias!r} doesn't exist.")
            mine[alias] = _open(alias, self.settings[alias], bound)
        return mine[alias]

    def everything(self: Any, initialized_only: bool = False) -> list[Any]:
        bound = CURRENT.get()
        if bound is None:  # an unbound connection is never open: there is nothing to close or reset
            return [] if initialized_only else [self[alias] for alias in self]
        mine = bound.local.__dict__.get("databases", {})
        declared = [alias for alias in self if store_name("database", alias) in bound.stores]
        return [self[alias] for alias in declared if not initialized_only or alias in mine]

    ConnectionHandler.__getitem__ = getitem
    ConnectionHandler.all = everything


def verify_settings() -> None:
    """Any engine may be used: where it connects to is decided by the binding. Raises ValueError for a shared pool."""
    from django.conf import settings

    for alias, options in settings.DATABASES.items():
        if options.get("OPTIONS", {}).get("pool"):  # one for each alias, whatever database the alias stands for
            raise ValueError(
                f"DATABASES[{alias!r}]['OPTIONS']['pool']: a pool would be shared by all environments; "
                "CONN_MAX_AGE keeps connections for each of them"
            )


def check_stores(stores: Stores) -> None:
    """The default database is needed, and a path only fits SQLite."""
    from django.conf import settings

    address = stores.get("database")
    if address is None:
        raise ValueError("the settings use a database, and the contract declares no store 'database'")
    engine = settings.DATABASES["default"]["ENGINE"]
    if ("path" in address) != (engine == _SQLITE):
        raise ValueError(f"store 'database' does not fit the settings' ENGINE {engine!r}")


def ready(bound: Bound) -> None:
    """Each declared database answers."""
    from django.db import connections

    for connection in connections.all():
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    connections.close_all()
