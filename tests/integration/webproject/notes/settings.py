"""Plain settings. ``NOTES_BASE`` is where the tests build the base; on the shared server it is not set.

With ``NOTES_DATABASE=postgresql`` the rows are in a PostgreSQL database; libpq's variables say where it is built.
"""

import os
from pathlib import Path

BASE = Path(os.environ.get("NOTES_BASE", "/nonexistent/notes"))
SECRET_KEY = "notes"
DEBUG = False
ALLOWED_HOSTS = ["notes.example", "notes.localhost"]  # pages of the latter may have service workers
ROOT_URLCONF = "notes.urls"
SITE_ID = 1
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.sites",
    "haystack",
    "notes",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(BASE / "notes.sqlite3"),
        "CONN_MAX_AGE": 600,
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }
}
if os.environ.get("NOTES_DATABASE") == "postgresql":
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ.get("PGDATABASE", "notes_are_nowhere"),
            "CONN_MAX_AGE": 600,
            "CONN_HEALTH_CHECKS": True,
        }
    }
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
MEDIA_ROOT = str(BASE / "media")
MEDIA_URL = "/media/"
STATIC_URL = "/static/"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
HAYSTACK_CONNECTIONS = {
    "default": {"ENGINE": "haystack.backends.whoosh_backend.WhooshEngine", "PATH": str(BASE / "search")}
}
HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.RealtimeSignalProcessor"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
