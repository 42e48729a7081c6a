"""The gateway: the only way from a client to a shared server (see engine.ports.Gateway).

    async with open_gateway(kernel, name=journal.id) as gateway:
        door = await gateway.open_proxy(identity, routes)

Every request takes a lease of the kernel, gets a ticket that it can't forge, and is refused by name where it must not
pass. A task group of the gateway owns all connections; leaving the context ends them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.to_thread

from statefork.adapters.interfaces.gateway.addresses import SHARED, Addresses
from statefork.adapters.interfaces.gateway.certificate import server_context
from statefork.adapters.interfaces.gateway.door import Door, ProxyDoor, SiteDoor
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.engine.outside import Exchanging
from statefork.engine.pointing import Pointers, Within
from statefork.engine.ports import Admission, Route
from statefork.journal.values import Identity

__all__ = ["HttpGateway", "Limits", "open_gateway"]


class HttpGateway:
    """Opens doors. Made by ``open_gateway``."""

    def __init__(
        self, admission: Admission, limits: Limits, tasks: anyio.abc.TaskGroup, name: str, exchange: Exchanging | None
    ) -> None:
        self._admission = admission
        self._limits = limits
        self._tasks = tasks
        self._addresses = Addresses(name)
        self._exchange = exchange
        self._certified: ssl.SSLContext | None = None
        self._pointers = Pointers()

    def point(self, resource: str, identity: Identity, port: int, network: Within | None = None) -> None:
        """See :class:`statefork.engine.pointing.Pointing`."""
        self._pointers.point(resource, identity, port, network)

    def unpoint(self, resource: str, identity: Identity, port: int) -> None:
        """See :class:`statefork.engine.pointing.Pointing`."""
        self._pointers.unpoint(resource, identity, port)

    def reserve(self) -> socket.socket:
        """A port for a proxy that is opened later: until then whoever connects waits. Close it if it never is."""
        return socket.create_server((SHARED, 0))

    async def open_proxy(
        self, identity: Identity, routes: tuple[Route, ...], reserved: socket.socket | None = None
    ) -> Door:
        """A forward-proxy port for one activation. Raises MissingDependency for a route to https outside."""
        door = ProxyDoor(identity.env, identity, routes, self._admission, self._limits, self._exchange)
        door.reserved = reserved
        try:
            if any(route.outside == "https" for route in routes):
                self._certified = door.certified = self._certified or await anyio.to_thread.run_sync(server_context)
            return await self._open(door)
        except BaseException:
            if reserved is not None:
                reserved.close()  # of a door that did not open, or no longer listens
            raise

    async def open_site(self, env: str, route: Route) -> Door:
        """A private base URL of one environment's site."""
        return await self._open(SiteDoor(env, route, self._admission, self._limits, self._addresses))

    async def _open(self, door: Door) -> Door:
        door.pointers = self._pointers
        await self._tasks.start(door.run)
        return door


@asynccontextmanager
async def open_gateway(
    admission: Admission, limits: Limits | None = None, *, name: str = "", exchange: Exchanging | None = None
) -> AsyncIterator[HttpGateway]:
    """A gateway whose connections live in this context. Its sites' addresses follow from ``name``: the journal's id.

    ``exchange`` answers what pages ask of hosts outside of their world; without it they reach none.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield HttpGateway(admission, limits or Limits(), tasks, name, exchange)
        except Exception as error:  # noqa: BLE001 - raised again below, as itself instead of in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
