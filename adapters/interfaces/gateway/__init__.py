"""The gateway: the only way from a client to a shared server (see engine.ports.Gateway).

    async with open_gateway(kernel, name=journal.id) as gateway:
        door = await gateway.open_proxy(identity, routes)

Every request takes a lease of the kernel, gets a ticket that it can't forge, and is refused by name where it must not
pass. A task group of the gateway owns all connections; leaving the context ends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from statefork.adapters.interfaces.gateway.addresses import Addresses
from statefork.adapters.interfaces.gateway.door import Door, ProxyDoor, SiteDoor
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.engine.ports import Admission, Route
from statefork.journal.values import Identity

__all__ = ["HttpGateway", "Limits", "open_gateway"]


class HttpGateway:
    """Opens doors. Made by ``open_gateway``."""

    def __init__(self, admission: Admission, limits: Limits, tasks: anyio.abc.TaskGroup, name: str) -> None:
        self._admission = admission
        self._limits = limits
        self._tasks = tasks
        self._addresses = Addresses(name)

    async def open_proxy(self, identity: Identity, routes: tuple[Route, ...]) -> Door:
        """A forward-proxy port for one activation."""
        return await self._open(ProxyDoor(identity.env, identity, routes, self._admission, self._limits))

    async def open_site(self, env: str, route: Route) -> Door:
        """A private base URL of one environment's site."""
        return await self._open(SiteDoor(env, route, self._admission, self._limits, self._addresses))

    async def _open(self, door: Door) -> Door:
        await self._tasks.start(door.run)
        return door


@asynccontextmanager
async def open_gateway(
    admission: Admission, limits: Limits | None = None, *, name: str = ""
) -> AsyncIterator[HttpGateway]:
    """A gateway whose connections live in this context. Its sites' addresses follow from ``name``: the journal's id."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield HttpGateway(admission, limits or Limits(), tasks, name)
        except Exception as error:  # noqa: BLE001 - raised again below, as itself instead of in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
