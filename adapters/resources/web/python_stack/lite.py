"""``sqlite3``: whatever file is asked for, the environment's own is opened, and every use passes its gate.

An audit hook of the interpreter refuses whatever else would open a file, in whichever way it came by the driver.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from statefork.adapters.resources.web.bound import Bound, NoEnvironment, current
from statefork.adapters.resources.web.python_stack.connections import NAMES, Address, DriverSession

_allowed = threading.local()  # while this thread opens a store
_GATED_CURSOR = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall", "__next__")
_GATED = ("commit", "rollback", "backup", "blobopen", "serialize", "deserialize", "iterdump", "__exit__")
_WRONG_THREAD = "SQLite objects created in a thread can only be used in that same thread"


def _gated(name: str, base: type[Any]) -> Callable[..., Any]:
    original = getattr(base, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.sf_connection().sf_use():
            return original(self, *args, **kwargs)

    method.__name__ = name
    return method


class _Connection:
    """Mixed into the connection class that the application wants (see connections.Raw)."""

    def sf_opened(self, session: DriverSession, *, own_thread: bool) -> None:
        self._sf_session = session
        self._sf_thread = threading.get_ident() if own_thread else 0
        self._sf_open = True
        self._sf_cursors: weakref.WeakSet[Any] = weakref.WeakSet()

    def sf_connection(self) -> Any:
        return self

    def sf_use(self) -> Any:
        if self._sf_thread not in (0, threading.get_ident()):
            raise sqlite3.ProgrammingError(_WRONG_THREAD)
        return self._sf_session.use()

    def sf_is_open(self) -> bool:
        return self._sf_open

    def sf_in_transaction(self) -> bool:
        try:
            return bool(self.in_transaction)  # type: ignore[attr-defined]  # mixed in
        except sqlite3.ProgrammingError:  # its owner has just closed it
            return False

    def sf_close(self) -> None:
        for cursor in tuple(self._sf_cursors):  # a statement that is half read would keep the file open
            sqlite3.Cursor.close(cursor)
        self.close()

    def sf_interrupt(self) -> None:
        self.interrupt()  # type: ignore[attr-defined]  # mixed in

    def close(self) -> None:
        self._sf_open = False
        super().close()  # type: ignore[misc]  # mixed in

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        made = super().cursor(_cursor_class(factory))  # type: ignore[misc]  # mixed in
        self._sf_cursors.add(made)
        return made

    # the driver's own make cursors past ``cursor``

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        return self.cursor().executescript(*args)


class _Cursor:
    def sf_connection(self) -> Any:
        return self.connection  # type: ignore[attr-defined]  # mixed in


_classes: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _mixed(mixin: type[Any], base: Any, default: type[Any], gated: tuple[str, ...]) -> type[Any]:
    if not (isinstance(base, type) and issubclass(base, default)):
        raise TypeError(f"a factory must be a subclass of {default.__qualname__} here, not {base!r}")
    if issubclass(base, mixin):
        return base
    if (mixin, base) not in _classes:
        methods = {name: _gated(name, base) for name in gated if hasattr(base, name)}
        _classes[mixin, base] = type(base.__name__, (mixin, base), methods)
    return _classes[mixin, base]


def _cursor_class(base: Any) -> type[Any]:
    return _mixed(_Cursor, base, sqlite3.Cursor, _GATED_CURSOR)


def _asked(database: Any, *, uri: bool) -> tuple[str, str]:
    """The name of what is asked for, and the mode. Raises NoEnvironment for what no store can be."""
    text = str(database.decode() if isinstance(database, bytes) else database)
    mode = ""
    if uri and text.startswith("file:"):
        text, _, query = text.removeprefix("file:").partition("?")
        text, mode = unquote(text), "".join(parse_qs(query).get("mode", []))
    if text in ("", ":memory:") or mode == "memory":
        raise NoEnvironment("a database in memory is in no store: it would be empty after each switch")
    return Path(text).stem, mode


def open_store(
    bound: Bound, kind: str, address: Address, *, mode: str = "", own_thread: bool = True, **options: Any
) -> Any:
    """Connect to a store, as the running code's binding. Raises BindingEnded, sqlite3.Error."""
    if "path" not in address:
        raise NoEnvironment(f"store {kind!r} is a database of a server, and sqlite3 was asked to open it")
    factory = _mixed(_Connection, options.pop("factory", sqlite3.Connection), sqlite3.Connection, _GATED)
    session = DriverSession(bound, f"database {kind!r}")
    place = f"file:{quote(str(address['path']))}?mode={mode or 'rw'}"
    with bound.using(session):
        _allowed.opening = True
        try:
            raw = _connect(place, uri=True, check_same_thread=False, factory=factory, **options)
        finally:
            _allowed.opening = False
        raw.sf_opened(session, own_thread=own_thread)
        raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # else ATTACH reaches any file
        session.is_of(raw)
    return raw


_connect = sqlite3.connect
_ORDER = ("timeout", "detect_types", "isolation_level", "check_same_thread", "factory", "cached_statements", "uri")


def connect(database: Any, *args: Any, **options: Any) -> Any:
    """``sqlite3.connect``, to the store that the name leads to."""
    bound = current()
    options.update(zip(_ORDER, args, strict=False))
    name, mode = _asked(database, uri=bool(options.pop("uri", False)))
    kind, address = NAMES.find(bound, name)
    own_thread = bool(options.pop("check_same_thread", True))
    return open_store(bound, kind, address, mode="ro" if mode == "ro" else "", own_thread=own_thread, **options)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "sqlite3.connect":
        refuse_others(args[0])


def refuse_others(database: Any) -> None:
    """No file but a store is opened."""
    if not getattr(_allowed, "opening", False):
        current()
        raise NoEnvironment(f"sqlite3 was made to open {database!r} around its connect(): use that")


def install() -> None:
    """Patch the driver, before the application is imported."""
    for name in ("sqlite3", "sqlite3.dbapi2", "_sqlite3"):
        __import__(name)
        sys.modules[name].connect = connect  # type: ignore[attr-defined]  # a patch
    sys.addaudithook(_audit)
