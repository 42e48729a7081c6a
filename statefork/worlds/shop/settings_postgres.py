"""The shop's settings with PostgreSQL as its database, and nothing else changed.

Outside of statefork libpq's own variables (PGHOST, PGDATABASE, …) say where it is. On the shared server the web adapter
chooses the database per request; a query which no environment owns fails.
"""

from __future__ import annotations

import os

from statefork.worlds.shop.settings import *  # noqa: F403  the same application

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE") or "statefork_shop_has_no_environment",
        "ATOMIC_REQUESTS": True,
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,  # a server that was started again has ended the sessions that were idle
    }
}
