"""Doors: loopback ports that carry one identity (proxy) or one environment's site (private base URL).

A site's door has a loopback address of its own besides (see ``addresses``): to a client it is a host of its own.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import anyio
import anyio.abc
from anyio.abc import SocketAttribute, TaskStatus

from statefork.adapters.interfaces.accepting import accept_each
from statefork.adapters.interfaces.gateway import heads
from statefork.adapters.interfaces.gateway.addresses import Addresses, Listening, on_reserved_port, on_shared_address
from statefork.adapters.interfaces.gateway.client import Client
from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Headers, Refused
from statefork.adapters.interfaces.gateway.wire import Gone
from statefork.engine.outside import Exchanging
from statefork.engine.pointing import Pointers, Within
from statefork.engine.ports import Admission, Route
from statefork.journal.values import Identity

_log = logging.getLogger("statefork.gateway")


def keep_alive(stream: anyio.abc.ByteStream, after_s: int) -> None:
    """Notice a client that is gone without a word (its machine, its network): connections at rest have no deadline."""
    raw = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, after_s), (socket.TCP_KEEPINTVL, after_s), (socket.TCP_KEEPCNT, 3)):
        raw.setsockopt(socket.IPPROTO_TCP, option, value)


class Carried:
    """A connection between requests: how to end it, why it was ended, and when it has."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.ended_by = ""

    def end(self, reason: str) -> None:
        """Cancel its relay."""
        self.ended_by = reason
        self.scope.cancel()


class Door:
    """An open port (see engine.ports.Listener). What comes through it is attributed without asking the client."""

    tunnels = False
    websockets = True
    pointers = Pointers()

    def __init__(
        self,
        env: str,
        identity: Identity | None,
        routes: tuple[Route, ...],
        admission: Admission,
        limits: Limits,
        exchange: Exchanging | None = None,
    ) -> None:
        self.env = env
        self.identity = identity
        self.routes = routes
        self.host = ""
        self.port = 0
        self.base_url = ""
        self.conditions = ""
        self.exchange = exchange
        self._admission = admission
        self._limits = limits
        self._connections = 0
        self._scope = anyio.CancelScope()
        self._closed = anyio.Event()
        self._carried: dict[Identity, set[Carried]] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until closed. A task of the gateway's group."""
        try:
            with self._scope:
                async with self._listening() as listener, anyio.create_task_group() as tasks:
                    address = listener.extra(SocketAttribute.local_address)
                    self.host, self.port = str(address[0]), int(address[1])
                    self.base_url = f"http://{self.host}:{self.port}"
                    self._opened()
                    task_status.started()
                    for each in listener.listeners:
                        assert isinstance(each, anyio.abc.SocketListener)  # what anyio makes for TCP
                        tasks.start_soon(accept_each, each, self._serve, tasks)
        finally:
            self._closed.set()

    def _listening(self) -> AbstractAsyncContextManager[Listening]:
        return on_shared_address()

    def _opened(self) -> None:
        """Address and port are known now."""

    async def _serve(self, stream: anyio.abc.ByteStream) -> None:
        client = Client(stream, self, self._admission, self._limits)
        self._connections += 1
        try:
            keep_alive(stream, self._limits.keepalive_s)
            if self._connections > self._limits.connections_max:
                await client.refuse_connection()
            else:
                await client.serve()
        except Exception:  # noqa: BLE001 - logged with its traceback; one connection must not end the gateway
            _log.exception("a connection of %s failed", self.identity or self.env)
        finally:
            self._connections -= 1

    @contextmanager
    def carrying(self, identity: Identity) -> Iterator[Carried]:
        """Around a connection that outlives its request: ``end`` and ``close`` end it, and say why."""
        carried = Carried()
        group = self._carried.setdefault(identity, set())
        group.add(carried)
        try:
            with carried.scope:
                yield carried
        finally:
            group.discard(carried)
            carried.ended.set()

    async def end(self, identity: Identity) -> None:
        """Close the connections that still carry this identity, and join them."""
        group = self._carried.pop(identity, set())
        leaving = tuple(group)
        for carried in leaving:
            carried.end(f"its epoch {identity.epoch} is over")
        for carried in leaving:
            await carried.ended.wait()

    async def close(self) -> None:
        """Stop accepting, end what is under way, and free the port. Idempotent."""
        for identity in tuple(self._carried):
            await self.end(identity)
        self._scope.cancel()
        await self._closed.wait()

    # -- what proxy and site doors do differently -------------------------------------------------------------

    def find(self, authority: str | None, host_header: bytes, tunnel: str | None) -> tuple[str, Route]:
        """The canonical host and the route of a request. Raises Refused."""
        raise NotImplementedError

    def upstream(self, route: Route, identity: Identity) -> tuple[str, int, Within | None]:
        """Where a request is to be sent that has its lease. Raises Gone where its backend is not there."""
        if not route.private:
            return route.upstream_host, route.upstream_port, None
        port, network = self.pointers.place(route.private, identity)
        if not port:
            raise Gone(f"no backend of {route.private} is bound for {identity}")
        return route.upstream_host, port, network

    def inward(self, headers: Headers) -> Headers:
        """Request headers as the application should see them."""
        return headers

    def outward(self, headers: Headers) -> Headers:
        """Response headers as the client should see them."""
        return headers


class ProxyDoor(Door):
    """A forward proxy for one activation: the agent sees the original addresses."""

    tunnels = True
    certified: ssl.SSLContext | None = None  # for tunnels to https outside
    reserved: socket.socket | None = None  # its port, where that was told to a browser before

    def _listening(self) -> AbstractAsyncContextManager[Listening]:
        return on_shared_address() if self.reserved is None else on_reserved_port(self.reserved)

    def find(self, authority: str | None, host_header: bytes, tunnel: str | None) -> tuple[str, Route]:
        """By the request's absolute target; inside a tunnel by the tunnel's host, which Host must repeat."""
        if tunnel is not None:
            if heads.canonical(host_header) != tunnel or authority not in (None, tunnel):
                raise Refused(421, "unknown_host", f"this tunnel leads to {tunnel} only")
            authority = tunnel
        if authority is None:
            raise Refused(421, "unknown_host", "this port is a proxy: ask it for http:// URLs")
        return authority, heads.find_route(self.routes, authority)


class SiteDoor(Door):
    """A reverse proxy for plain HTTP clients: one site of one environment, always its present generation."""

    def __init__(self, env: str, route: Route, admission: Admission, limits: Limits, addresses: Addresses) -> None:
        super().__init__(env, None, (route,), admission, limits)
        self._addresses = addresses

    def _listening(self) -> AbstractAsyncContextManager[Listening]:
        return self._addresses.listening(self.env, self.routes[0].host)

    def _opened(self) -> None:
        self._names = heads.SiteNames(base_url=self.base_url, host=self.routes[0].host)
        # A forwarded port (ssh -L) makes the client say localhost; no page can rebind that name.
        self._authorities = {f"{self.host}:{self.port}", f"localhost:{self.port}"}

    def find(self, authority: str | None, host_header: bytes, tunnel: str | None) -> tuple[str, Route]:
        """The one route; another Host than the door's own comes from a page that rebinds names, and is refused."""
        route = self.routes[0]
        for claimed in (authority, heads.canonical(host_header)):
            if claimed is not None and claimed not in self._authorities:
                raise Refused(421, "unknown_host", f"{claimed} is not this door: it is {self.base_url}")
        return heads.canonical(route.host.encode()), route

    def inward(self, headers: Headers) -> Headers:
        return self._names.inward(headers)

    def outward(self, headers: Headers) -> Headers:
        return self._names.outward(headers)
