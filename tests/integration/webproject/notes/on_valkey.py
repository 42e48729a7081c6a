"""The same project with its cache and its sessions on a Redis server; where that is, the adapter decides."""

from notes.settings import *  # noqa: F403 - settings are made from settings

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://nowhere.invalid"},
    "sessions": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://nowhere.invalid",
        "KEY_PREFIX": "session:",
    },
}
SESSION_ENGINE = "django.contrib.sessions.backends.cache"
SESSION_CACHE_ALIAS = "sessions"
