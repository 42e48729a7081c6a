"""A SQLite database as a resource: a file per environment, cloned where the file system can, sealed by checkpoint."""

from __future__ import annotations

from statefork.adapters.resources.sqlite.resource import Options, SqliteResource
from statefork.engine.ports import Services

__all__ = ["Options", "SqliteResource", "make"]


def make(name: str, options: Options, services: Services) -> SqliteResource:
    """The resource of one contract entry."""
    return SqliteResource(name, options, services)
