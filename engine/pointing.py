"""Where the gateway finds backends of which each environment has one of its own.

A shared server has one port, and a ticket says for whom it works. A private backend has a port for each (environment,
epoch): a route names the resource, and the port is looked up when a request has its lease, by whose it is. So a
successor that is staged beside its predecessor gets its own requests only, and a backend that is replaced keeps its
routes.
"""

from __future__ import annotations

import socket
from typing import Protocol

from statefork.journal.values import Identity


class Within(Protocol):
    """A network that is not the machine's."""

    def new_socket(self) -> socket.socket:
        """A TCP socket that is in it. Raises OSError."""
        ...


class Pointing(Protocol):
    """A gateway that can be told."""

    def point(self, resource: str, identity: Identity, port: int, network: Within | None = None) -> None:
        """Requests of this environment and epoch to routes that name the resource go to this loopback port now.

        It is one of the ``network``'s, if the backend has one of its own.
        """
        ...

    def unpoint(self, resource: str, identity: Identity, port: int) -> None:
        """Nobody is at the port any more; where another was told meanwhile, that stays. Idempotent."""
        ...


class Pointers:
    """What a gateway was told."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int], tuple[int, Within | None]] = {}

    def point(self, resource: str, identity: Identity, port: int, network: Within | None = None) -> None:
        """See Pointing."""
        self._places[resource, identity.env, identity.epoch] = (port, network)

    def unpoint(self, resource: str, identity: Identity, port: int) -> None:
        """See Pointing."""
        key = (resource, identity.env, identity.epoch)
        if self.place(resource, identity)[0] == port:
            self._places.pop(key, None)

    def place(self, resource: str, identity: Identity) -> tuple[int, Within | None]:
        """The port, and the network that it is in if that is not the machine's; port 0 where there is none."""
        return self._places.get((resource, identity.env, identity.epoch), (0, None))
