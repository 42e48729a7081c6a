"""A server that somebody else runs, reached by a connection string. Only what bears our names is changed."""

from __future__ import annotations

from pathlib import Path

from statefork.adapters.resources.postgres.connecting import Address, address_of, reach
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.reflink import ReflinkProbe

_DATABASE = "postgres"


class ExternalServer:
    """The same face as :class:`statefork.adapters.resources.postgres.server.EmbeddedServer`."""

    own = False

    def __init__(self, resource: str, dsn: str, option: str = "dsn") -> None:
        """``option`` is the one that the connection string comes from. Raises ContractError where it can't be read."""
        self._resource = resource
        self._option = option
        self._address = {"dbname": _DATABASE, **address_of(resource, option, dsn)}
        self._door: dict[str, str | int] = {}
        self.making = Making()
        self._data: Path | None = None

    def acquire(self) -> None:
        """See that it answers. Raises ResourceUnreachable, ResourceFailed."""
        with reach(self._resource, self._address, self._option) as connection:
            self._door = {"host": connection.info.host, "port": connection.info.port}
            row = connection.execute(
                "SELECT current_setting('data_directory', true), oid FROM pg_database "
                "WHERE datname = current_database() AND pg_has_role('pg_read_all_settings', 'USAGE')"
            ).fetchone()
        self._data = _seen_here(*row) if row else None

    def release(self) -> None:
        """It goes on."""

    def address(self) -> Address:
        """How we connect."""
        return dict(self._address)

    def door(self) -> dict[str, str | int]:
        """Host and port."""
        return dict(self._door)

    def data_directory(self) -> Path | None:
        """Its data directory, where it is on this machine and may be looked into."""
        return self._data

    def look_ahead(self) -> ReflinkProbe:
        """How it copies is known when it is used; whether it lets us in can be tried. Raises as ``acquire``."""
        reach(self._resource, self._address, self._option).close()
        return ReflinkProbe(False, "the server is somebody else's, and looked at when the engine starts")

    def process_ids(self) -> tuple[int, ...]:
        """None are ours."""
        return ()

    def acceleration(self) -> str:
        """It is not ours to change."""
        return ""

    def check(self) -> None:
        """Whoever runs it starts it again."""


def _seen_here(directory: str | None, oid: int) -> Path | None:
    try:
        if directory and (Path(directory) / "base" / str(oid) / "PG_VERSION").is_file():
            return Path(directory)
    except OSError:
        pass
    return None
