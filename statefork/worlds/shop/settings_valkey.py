"""Settings of the shop with its cache and its sessions on a Redis server; where that is, the web adapter decides."""

from __future__ import annotations

from statefork.worlds.shop.settings import *  # noqa: F403 - settings are made from settings

_NOWHERE = "redis://statefork-shop-has-no-environment.invalid"
_BACKEND = "django.core.cache.backends.redis.RedisCache"

CACHES = {
    "default": {"BACKEND": _BACKEND, "LOCATION": _NOWHERE},
    "sessions": {"BACKEND": _BACKEND, "LOCATION": _NOWHERE, "KEY_PREFIX": "session"},
}
SESSION_ENGINE = "django.contrib.sessions.backends.cache"
SESSION_CACHE_ALIAS = "sessions"
