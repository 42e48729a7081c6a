"""Where the gateway finds backends of which each environment has one of its own.

A shared server has one port, and a ticket says for whom it works. A private backend has a port for each (environment,
epoch): a route names the resource, and the port is looked up when a request has its lease, by whose it is. So a
successor that is staged beside its predecessor gets its own requests only, and a backend that is replaced keeps its
routes.
"""

from __future__ import annotations

from typing import Protocol

from statefork.journal.values import Identity


class Pointing(Protocol):
    """A gateway that can be told."""

    def point(self, resource: str, identity: Identity, port: int) -> None:
        """Requests of this environment and epoch to routes that name the resource go to this loopback port now."""
        ...

    def unpoint(self, resource: str, identity: Identity, port: int) -> None:
        """Nobody is at the port any more; where another was told meanwhile, that stays. Idempotent."""
        ...


class Pointers:
    """What a gateway was told."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str, int], int] = {}

    def point(self, resource: str, identity: Identity, port: int) -> None:
        """See Pointing."""
        self._ports[resource, identity.env, identity.epoch] = port

    def unpoint(self, resource: str, identity: Identity, port: int) -> None:
        """See Pointing."""
        key = (resource, identity.env, identity.epoch)
        if self._ports.get(key) == port:
            del self._ports[key]

    def port(self, resource: str, identity: Identity) -> int:
        """Where it is; 0 where there is none."""
        return self._ports.get((resource, identity.env, identity.epoch), 0)
