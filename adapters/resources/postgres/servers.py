"""The servers of this process, by place: whoever asks for one of a place shares it.

A contract's resources have a server each, unless one names another whose server it uses as well.
"""

from __future__ import annotations

import threading
from pathlib import Path

from statefork.adapters.resources.postgres.connecting import Address
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.postgres.server import EmbeddedServer, Setup
from statefork.adapters.resources.reflink import ReflinkProbe
from statefork.engine.errors import ContractError

_servers: dict[Path, EmbeddedServer] = {}
_servers_lock = threading.Lock()


def server_at(setup: Setup) -> EmbeddedServer:
    """The server of a place: one for all who ask in this process."""
    with _servers_lock:
        return _servers.setdefault(setup.place.resolve(), EmbeddedServer(setup))


def running_places() -> list[Path]:
    """Where servers of this process are."""
    with _servers_lock:
        return [place for place, server in _servers.items() if server.process_ids()]


def give_up(place: Path) -> None:
    """Stop the server of a place that will not be used again, whoever uses it. Idempotent."""
    with _servers_lock:
        server = _servers.pop(place.resolve(), None)
    if server is not None:
        server.halt()


class LentServer:
    """The server of another resource of the contract, looked up when it is first used: that one may be made later."""

    own = True

    def __init__(self, resource: str, owner: str, place: Path, *, survives_os: bool) -> None:
        self._key = f"resources.{resource}.server"
        self._owner = owner
        self._place = place.resolve()
        self._survives_os = survives_os

    def _server(self) -> EmbeddedServer:
        with _servers_lock:
            server = _servers.get(self._place)
        if server is None:
            raise ContractError(
                f"{self._key}: no resource {self._owner!r} of this contract has a PostgreSQL server of its own",
                hint="Name a resource with the adapter postgres that itself says neither server nor dsn",
                key=self._key,
            )
        return server

    @property
    def making(self) -> Making:
        """See :class:`EmbeddedServer`."""
        return self._server().making

    def acquire(self) -> None:
        """Run it, for one more user. Raises ContractError where it does not keep what is promised of it."""
        server = self._server()
        if self._survives_os and server.setup.settings.get("fsync") != "on":
            raise ContractError(
                f"{self._key}: the server of {self._owner!r} does not survive a crash of the operating system",
                hint=f"Say survives = 'os' of {self._owner!r}, too",
                key=self._key,
            )
        server.acquire()

    def release(self) -> None:
        """One user less."""
        self._server().release()

    def address(self) -> Address:
        """How the superuser connects."""
        return self._server().address()

    def door(self) -> dict[str, str | int]:
        """Host and port."""
        return self._server().door()

    def data_directory(self) -> Path | None:
        """The data directory, to look at."""
        return self._server().data_directory()

    def look_ahead(self) -> ReflinkProbe:
        """Whether clones will share their extents."""
        return self._server().look_ahead()

    def process_ids(self) -> tuple[int, ...]:
        """The server's processes."""
        return self._server().process_ids()

    def acceleration(self) -> str:
        """How copies are made faster."""
        return self._server().acceleration()

    def check(self) -> None:
        """Raise RuntimeDied where it was given up."""
        self._server().check()
