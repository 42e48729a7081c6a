"""Caches: a slice of its own per (environment, epoch), dropped with the binding.

An in-memory cache begins empty at each switch; a file cache lives in the declared store ``cache``. A database cache
follows the database. Caches on servers of their own are refused: nothing could fork them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.bound import Bound, Stores, current
from statefork.adapters.resources.web.django_stack.databases import store_name

_MEMORY = "django.core.cache.backends.locmem.LocMemCache"
_FILES = "django.core.cache.backends.filebased.FileBasedCache"
_DATABASE = "django.core.cache.backends.db.DatabaseCache"
_DUMMY = "django.core.cache.backends.dummy.DummyCache"
_KNOWN = (_MEMORY, _FILES, _DATABASE, _DUMMY)


def _slice(bound: Bound, location: str) -> str:
    return f"statefork|{bound.identity}|{location}"


def _open(alias: str, settings: dict[str, Any], bound: Bound) -> Any:
    from django.utils.module_loading import import_string

    params = dict(settings)
    backend = params.pop("BACKEND")
    location = params.pop("LOCATION", "")
    if backend == _MEMORY:
        location = _slice(bound, location)
    elif backend == _FILES:
        address = bound.stores[store_name("cache", alias)]
        location = str(address["path"])
    return import_string(backend)(location, params)


def _mine(handler: Any, alias: str) -> Any:
    """The running code's own cache of an alias."""
    bound = current()
    bound.pass_gate()
    mine = bound.local.__dict__.setdefault("caches", {})
    if alias not in mine:
        mine[alias] = _open(alias, handler.settings[alias], bound)
    return mine[alias]


class CacheDoor:
    """What code gets that asks for a cache. It may keep it for ever: the running code's own cache answers."""

    def __init__(self, handler: Any, alias: str) -> None:
        self.__dict__.update(_handler=handler, _alias=alias)

    def __getattr__(self, name: str) -> Any:
        return getattr(_mine(self._handler, self._alias), name)

    def __contains__(self, key: str) -> bool:
        return key in _mine(self._handler, self._alias)


def install() -> None:
    """Patch ``django.core.cache.caches``."""
    from django.core.cache import CacheHandler

    def getitem(self: Any, alias: str) -> Any:
        if alias not in self.settings:
            raise self.exception_class(f"The connection {alias!r} doesn't exist.")
        return CacheDoor(self, alias)

    def everything(self: Any, initialized_only: bool = False) -> list[Any]:
        used = current().local.__dict__.get("caches", {})
        return [self[alias] for alias in self if not initialized_only or alias in used]

    CacheHandler.__getitem__ = getitem
    CacheHandler.all = everything


def verify_settings() -> None:
    """Refuse caches whose content no store of the contract holds, and sessions kept in one that a switch empties."""
    from django.conf import settings

    for alias, options in settings.CACHES.items():
        if options["BACKEND"] not in _KNOWN:
            raise ValueError(f"CACHES[{alias!r}]: {options['BACKEND']} keeps data that no environment can own")
    if settings.SESSION_ENGINE == "django.contrib.sessions.backends.cache":
        backend = settings.CACHES[settings.SESSION_CACHE_ALIAS]["BACKEND"]
        if backend in (_MEMORY, _DUMMY):
            raise ValueError("SESSION_ENGINE keeps sessions in a cache that is empty after each switch: use 'db'")


def check_stores(stores: Stores) -> None:
    """A file cache needs its store."""
    from django.conf import settings

    for alias, options in settings.CACHES.items():
        name = store_name("cache", alias)
        if options["BACKEND"] == _FILES and "path" not in stores.get(name, {}):
            raise ValueError(f"CACHES[{alias!r}] is kept in files, and the contract declares no store {name!r}")


def ready(bound: Bound) -> None:
    """A file cache's directory is there."""
    for name, address in bound.stores.items():
        if name.split(".")[0] == "cache" and not Path(str(address["path"])).is_dir():
            raise FileNotFoundError(f"store {name!r} has no directory")


def drop(bound: Bound) -> None:
    """Forget the in-memory slices of a binding."""
    from django.core.cache.backends import locmem

    prefix = _slice(bound, "")
    for shelf in (locmem._caches, locmem._expire_info, locmem._locks):
        for name in [name for name in tuple(shelf) if name.startswith(prefix)]:
            shelf.pop(name, None)
