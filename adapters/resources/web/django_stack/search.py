"""Haystack: a search engine per (thread, environment + epoch, alias), its Whoosh index in the declared store.

What Haystack hands out as a backend is a door that finds the running code's own, so a query set that a module made at
import follows whoever uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.bound import Bound, NoEnvironment, Stores, current
from statefork.adapters.resources.web.django_stack.databases import store_name

_WHOOSH = "haystack.backends.whoosh_backend.WhooshEngine"
_SIMPLE = "haystack.backends.simple_backend.SimpleEngine"


def _connections() -> dict[str, dict[str, Any]]:
    """Haystack's settings; empty where the project does not use it."""
    from django.conf import settings

    return getattr(settings, "HAYSTACK_CONNECTIONS", {}) if "haystack" in settings.INSTALLED_APPS else {}


def _backend(alias: str, engine: Any) -> Any:
    """The running code's backend of an alias."""
    bound = current()
    bound.pass_gate()
    mine = bound.local.__dict__.setdefault("search", {})
    if alias not in mine:
        options = dict(engine.options)
        if options.get("ENGINE") == _WHOOSH:
            address = bound.stores.get(store_name("search", alias))
            if address is None:
                raise NoEnvironment(f"search index {alias!r} is not a store of this environment")
            options["PATH"] = str(address["path"])
        mine[alias] = engine.backend(engine.using, **options)
    return mine[alias]


class BackendDoor:
    """Looks like a search backend; everything is answered by the running code's own."""

    def __init__(self, alias: str, engine: Any) -> None:
        self.__dict__.update(_alias=alias, _engine=engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(_backend(self._alias, self._engine), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_backend(self._alias, self._engine), name, value)


class _IndexDoor:
    """The unified index holds objects being prepared (rows of an environment): one per thread and binding."""

    def __get__(self, engine: Any, owner: Any) -> Any:
        return self if engine is None else current().local.__dict__.setdefault("indexes", {}).get(engine.using)

    def __set__(self, engine: Any, value: Any) -> None:
        if value is not None:
            current().local.__dict__.setdefault("indexes", {})[engine.using] = value


def install() -> None:
    """Patch Haystack's engine base class, if the project uses Haystack."""
    if not _connections():
        return
    from haystack.backends import BaseEngine

    def get_backend(self: Any) -> Any:
        return BackendDoor(self.using, self)

    BaseEngine.get_backend = get_backend
    BaseEngine._index = _IndexDoor()


def verify_settings() -> None:
    """Refuse engines on servers of their own, and indexes in process memory."""
    for alias, options in _connections().items():
        if options["ENGINE"] not in (_WHOOSH, _SIMPLE):
            raise ValueError(f"HAYSTACK_CONNECTIONS[{alias!r}]: {options['ENGINE']} can't be owned by an environment")
        if options.get("STORAGE", "file") != "file":
            raise ValueError(f"HAYSTACK_CONNECTIONS[{alias!r}]: an index in memory is shared by all environments")


def check_stores(stores: Stores) -> None:
    """A Whoosh index needs its store."""
    for alias, options in _connections().items():
        name = store_name("search", alias)
        if options["ENGINE"] == _WHOOSH and "path" not in stores.get(name, {}):
            raise ValueError(f"HAYSTACK_CONNECTIONS[{alias!r}] is kept in files, and the contract declares no {name!r}")


def ready(bound: Bound) -> None:
    """The index directories are there."""
    for name, address in bound.stores.items():
        if name.split(".")[0] == "search" and not Path(str(address["path"])).is_dir():
            raise FileNotFoundError(f"store {name!r} has no directory")
