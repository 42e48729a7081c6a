"""Python applications of any framework, WSGI and ASGI, in the server's own process.

Their drivers are hooked (``sqlite3``, ``psycopg``), so that whatever name of a database they ask for leads to the
environment's store. What else a site keeps, its page of settings splits with what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from statefork.adapters.resources.web.bound import NoEnvironment, current
from statefork.journal.values import Json

__all__ = ["keep", "store"]


def store(kind: str) -> Mapping[str, Json]:
    """Where the running code's store of a kind is (``path``, or ``host``, ``port``, …). Raises NoEnvironment."""
    bound = current()
    bound.pass_gate()
    if kind not in bound.stores:
        raise NoEnvironment(f"{kind!r} is not a store of this environment: declare it in the contract")
    return bound.stores[kind]


def keep(name: str, make: Callable[[], Any]) -> Any:
    """An object that lives as long as the running code's binding; made when it is first asked for."""
    bound = current()
    key = ("kept", name)
    if key not in bound.slots:
        bound.slots.setdefault(key, make())
    return bound.slots[key]
