"""Caches: a slice of its own per (environment, epoch), dropped with the binding.

An in-memory cache begins empty at each switch; a file cache lives in the declared store ``cache``. A database cache
follows the database. A Redis cache lives in the namespace of the declared store, under its prefix. Caches on other
servers are refused: nothing could fork them.
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
_SERVER = "django.core.cache.backends.redis.RedisCache"
_KNOWN = (_MEMORY, _FILES, _DATABASE, _DUMMY, _SERVER)
_SESSIONS = "django.contrib.sessions.backends.cache"
_READY_KEY = "statefork-ready"


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
    elif backend == _SERVER:
        return _on_server(alias, import_string(backend), params, bound)
    return import_string(backend)(location, params)


def _on_server(alias: str, backend: Any, params: dict[str, Any], bound: Bound) -> Any:
    """One for all threads: it keeps a pool of connections."""
    key = ("cache", alias)
    if key not in bound.slots:
        address = bound.stores[store_name("cache", alias)]
        params["KEY_PREFIX"] = f"{address['prefix']}{params.get('KEY_PREFIX', '')}"
        bound.slots.setdefault(key, backend([str(address["url"])], params))
    return bound.slots[key]


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
    if settings.SESSION_ENGINE == _SESSIONS:
        backend = settings.CACHES[settings.SESSION_CACHE_ALIAS]["BACKEND"]
        if backend in (_MEMORY, _DUMMY):
            raise ValueError("SESSION_ENGINE keeps sessions in a cache that is empty after each switch: use 'db'")


def check_stores(stores: Stores) -> None:
    """What is kept in files or on a server needs its store."""
    from django.conf import settings

    for alias, options in settings.CACHES.items():
        name = store_name("cache", alias)
        store = stores.get(name, {})
        if options["BACKEND"] == _FILES and ("path" not in store or "prefix" in store):
            raise ValueError(f"CACHES[{alias!r}] is kept in files, and the contract declares no store {name!r}")
        if options["BACKEND"] == _SERVER:
            if "prefix" not in store:
                raise ValueError(f"CACHES[{alias!r}] is on a server, and no namespace is declared as store {name!r}")
            if settings.SESSION_ENGINE == _SESSIONS and alias == settings.SESSION_CACHE_ALIAS and not store["kept"]:
                raise ValueError(f"SESSION_ENGINE keeps sessions in {name!r}, which is empty after each switch")


def ready(bound: Bound) -> None:
    """A file cache's directory is there, a server answers."""
    from django.conf import settings
    from django.core.cache import caches

    for alias, options in settings.CACHES.items():
        if options["BACKEND"] == _SERVER:
            caches[alias].get(_READY_KEY)
    for name, address in bound.stores.items():
        if name.split(".")[0] == "cache" and "prefix" not in address and not Path(str(address["path"])).is_dir():
            raise FileNotFoundError(f"store {name!r} has no directory")


def drop(bound: Bound) -> None:
    """Forget the in-memory slices of a binding, and close its connections to cache servers."""
    from django.core.cache.backends import locmem

    for key in [key for key in bound.slots if isinstance(key, tuple) and key[0] == "cache"]:
        for pool in bound.slots.pop(key)._cache._pools.values():
            pool.disconnect()

    prefix = _slice(bound, "")
    for shelf in (locmem._caches, locmem._expire_info, locmem._locks):
        for name in [name for name in tuple(shelf) if name.startswith(prefix)]:
            shelf.pop(name, None)
