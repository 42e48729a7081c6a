"""What a run changed on servers that the contract does not have: rows by PostgreSQL's own counters, keys of a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statefork.engine.errors import MissingDependency, ResourceUnreachable

_COUNTERS = """
    SELECT datname, tup_inserted + tup_updated + tup_deleted
    FROM pg_stat_database WHERE datname IS NOT NULL AND NOT datname LIKE 'statefork%'
"""
_FLUSH = "SELECT pg_stat_clear_snapshot()"
KEYS_MAX = 100_000


class Databases:
    """The databases of one server, and how many rows were written in each."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Read the counters. Raises MissingDependency, ResourceUnreachable."""
        self._before = self._counted()

    def end(self) -> Iterator[tuple[str, int]]:
        """Each database in which rows were written, and how many."""
        for name, rows in sorted(self._counted().items()):
            if rows > self._before.get(name, 0):
                yield name, rows - self._before.get(name, 0)

    def _counted(self) -> dict[str, int]:
        try:
            import psycopg
        except ImportError:
            raise MissingDependency(
                "databases are watched with psycopg, which is not installed", hint="pip install 'statefork[postgres]'"
            ) from None
        try:
            with psycopg.connect(self.dsn, autocommit=True, application_name="statefork discover") as connection:
                connection.execute(_FLUSH)
                rows = connection.execute(_COUNTERS).fetchall()
        except psycopg.Error as error:
            raise ResourceUnreachable(
                f"the PostgreSQL server to watch can't be asked: {str(error).strip()}",
                hint="Give --database a connection string that works with psql",
            ) from error
        return {str(name): int(count) for name, count in rows}


class Cache:
    """The keys of one server that speaks Redis's protocol."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._before: set[bytes] = set()

    def begin(self) -> None:
        """Read the names of the keys. Raises MissingDependency, ResourceUnreachable."""
        self._before = self._keys()

    def end(self) -> list[str]:
        """Keys that are new."""
        return sorted(key.decode(errors="replace") for key in self._keys() - self._before)

    def _keys(self) -> set[bytes]:
        try:
            import redis
        except ImportError:
            raise MissingDependency(
                "caches are watched with the client 'redis', which is not installed",
                hint="pip install 'statefork[valkey]'",
            ) from None
        found: set[bytes] = set()
        try:
            client: Any = redis.Redis.from_url(self.url)
            for key in client.scan_iter(count=1_000):
                found.add(key)
                if len(found) >= KEYS_MAX:
                    break
            client.close()
        except (redis.exceptions.RedisError, OSError, ValueError) as error:
            raise ResourceUnreachable(
                f"the cache to watch can't be asked: {error}", hint="Give --cache an address such as redis://127.0.0.1"
            ) from error
        return found
