"""A context that is made before anybody asks for it. Lives on the asyncio thread.

Context, tab, debugger and the tab's process take longer than all else that a restored page does not need its server
for. They depend on nothing but the contract's options and the number of the proxy's port. So one is made while nothing
is being bound, with a port that nobody listens on yet, and is used once: by the next environment that is bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.options import Options, context_options
from statefork.engine.errors import RuntimeDied
from statefork.engine.ports import Gateway, Listener, Route
from statefork.journal.values import Identity


@runtime_checkable
class Reserving(Gateway, Protocol):
    """A gateway whose proxies' ports can be had before their doors are opened."""

    def reserve(self) -> socket.socket:
        """A port for ``open_proxy``. Whoever connects waits until its door is open; closed when it never is."""
        ...

    async def open_proxy(
        self, identity: Identity, routes: tuple[Route, ...], reserved: socket.socket | None = None
    ) -> Listener:
        """As any gateway, on the reserved port. The socket is the gateway's from here on, also where it fails."""
        ...


class Ready(msgspec.Struct, kw_only=True):
    """A context with a blank tab. ``port``: of its proxy, reserved; None where the context has none."""

    options: Options
    live: LiveContext
    port: socket.socket | None

    def fits(self, options: Options, gateway: Gateway | None) -> bool:
        """Whether it is what an environment with these would get."""
        return self.options == options and (self.port is None) == (gateway is None) and not self.live.broken

    async def close(self) -> None:
        """When it is not wanted."""
        await self.live.close()
        if self.port is not None:
            self.port.close()


async def open_door(
    gateway: Gateway | None, ready: Ready | None, identity: Identity, routes: tuple[Route, ...]
) -> Listener | None:
    """The proxy of an activation, on the port of the context that is ready for it, if one is."""
    if gateway is None:
        return None
    if ready is not None and isinstance(gateway, Reserving):
        port, ready.port = ready.port, None
        return await gateway.open_proxy(identity, routes, port)
    return await gateway.open_proxy(identity, routes)


class Reserve:
    """At most one context in advance."""

    def __init__(self, make: Callable[..., Awaitable[LiveContext]]) -> None:
        self._make = make
        self._ready: Ready | None = None
        self._making: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def take(self, options: Options, gateway: Gateway | None) -> Ready | None:
        """The one that fits, if it is ready and answers; it is the caller's from here on."""
        ready = self._ready
        if ready is None or not ready.fits(options, gateway):
            return None
        self._ready = None
        answers = False
        try:
            answers = await ready.live.spare_answers()
        finally:
            if not answers:
                self._dismiss(ready)
        return ready if answers else None

    def _dismiss(self, ready: Ready) -> None:
        """Close it, for as long as that takes where nothing answers; nobody waits for it but the end."""
        closing = asyncio.create_task(ready.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def refill(self, options: Options, gateway: Gateway | None) -> None:
        """Begin to make one, unless one is being made or is there, or nobody can tell its port."""
        if gateway is not None and not isinstance(gateway, Reserving):
            return
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._refill(options, gateway))
            self._making.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _refill(self, options: Options, gateway: Gateway | None) -> None:
        old = self._ready
        if old is not None:
            if old.fits(options, gateway):
                return
            self._ready = None
            await old.close()
        # Where it fails, whoever needs a context makes it, and is told why that fails.
        with contextlib.suppress(PlaywrightError, RuntimeDied, OSError):
            self._ready = await self._prepare(options, gateway)

    async def _prepare(self, options: Options, gateway: Gateway | None) -> Ready:
        port = gateway.reserve() if isinstance(gateway, Reserving) else None
        try:
            number = int(port.getsockname()[1]) if port is not None else 0
            ready = Ready(options=options, live=await self._make(**context_options(options, number)), port=port)
        except BaseException:
            if port is not None:
                port.close()
            raise
        try:
            await ready.live.make_spare()
        except BaseException:
            await ready.close()
            raise
        return ready

    async def close(self) -> None:
        """End what is being made, and close what is there. Idempotent."""
        making, self._making = self._making, None
        if making is not None:
            making.cancel()
            await asyncio.wait({making})
        ready, self._ready = self._ready, None
        if ready is not None:
            self._dismiss(ready)
        if self._closing:
            await asyncio.wait(set(self._closing))
