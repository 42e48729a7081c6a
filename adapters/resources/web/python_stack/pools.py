"""Pools of connections, of which each binding has its own: SQLAlchemy's. Those that can't be split are refused.

An engine's pool is only a pattern: what it hands out comes from the running code's pool, made of the same arguments and
with the same listeners. It is forgotten when its connections are closed for a cut, and when its binding ends.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from statefork.adapters.resources.web.bound import Bound, current

_SLOT = "pools"
_OWN = "_statefork_own"


class Pools:
    """A binding's pools, by the engine's (see bound.Session): when connections are closed, none is handed out again."""

    def __init__(self) -> None:
        self.by_pattern: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def is_open(self) -> bool:
        """Its connections are counted themselves."""
        return False

    def busy(self) -> str:
        """They are asked themselves."""
        return ""

    def close_now(self) -> None:
        """They are closed themselves."""
        self.by_pattern.clear()

    def interrupt(self) -> None:
        """They are interrupted themselves."""


def _pools(bound: Bound) -> Pools:
    pools: Pools | None = bound.slots.get(_SLOT)
    if pools is None:
        pools = bound.slots.setdefault(_SLOT, Pools())
        bound.adopt(pools)
    return pools


def own_pool(pattern: Any) -> Any:
    """The running code's pool for an engine's. Raises NoEnvironment, BindingEnded."""
    bound = current()
    if getattr(pattern, _OWN, False):
        return pattern
    pools = _pools(bound).by_pattern
    found = pools.get(pattern)
    if found is None:
        made = _made_like(pattern)
        setattr(made, _OWN, True)
        found = pools.setdefault(pattern, made)
    return found


def _made_like(pattern: Any) -> Any:
    if getattr(getattr(pattern, "_dialect", None), "driver", "") != "aiosqlite":
        return pattern.recreate()
    from sqlalchemy.pool import NullPool

    # a thread works for each of its connections, and a drain would wait for that of one in a pool
    return NullPool(pattern._creator, pre_ping=pattern._pre_ping, _dispatch=pattern.dispatch, dialect=pattern._dialect)


def _split_sqlalchemy() -> None:
    from sqlalchemy.pool import Pool, SingletonThreadPool

    for kind in (Pool, SingletonThreadPool):
        original = kind.connect

        def connect(self: Any, original: Any = original) -> Any:
            return original(own_pool(self))

        kind.connect = connect  # type: ignore[method-assign]  # a patch


def _refuse_psycopg_pool() -> None:
    from psycopg_pool.base import BasePool

    def refused(self: Any, *_: Any, **__: Any) -> None:
        raise ValueError(
            f"psycopg_pool.{type(self).__name__} would be shared by all environments: connect where connections are "
            "needed, or through SQLAlchemy, whose pools are kept for each environment"
        )

    BasePool.__init__ = refused  # type: ignore[method-assign]  # a patch


def _guard_aiosqlite() -> None:
    """Its thread runs as whoever opened the connection: who asks must be looked at before."""
    from aiosqlite.core import Connection

    original: Any = Connection._execute

    async def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = getattr(self._connection, "_sf_session", None)
        if session is not None:
            session.check_owner()
        return await original(self, *args, **kwargs)

    Connection._execute = execute  # type: ignore[method-assign]  # a patch


_UNKNOWN = ("psycopg2", "asyncpg", "pg8000", "pymysql", "MySQLdb", "mysql.connector", "pymongo", "apsw", "duckdb")


def verify(loaded: Any) -> None:
    """Raise ValueError, by name, when a driver that nobody binds is among the modules that the application loaded."""
    for name in _UNKNOWN:
        if name in loaded:
            raise ValueError(f"the application uses {name}, which is bound to no environment: use sqlite3 or psycopg 3")


def install() -> None:
    """Patch whichever of them is there, before the application is imported."""
    patches = {"sqlalchemy": _split_sqlalchemy, "psycopg_pool": _refuse_psycopg_pool, "aiosqlite": _guard_aiosqlite}
    for name, patch in patches.items():
        if find_spec(name) is not None:
            patch()
