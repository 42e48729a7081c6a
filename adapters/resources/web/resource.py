"""A web application as a resource: one resident server, a namespace per (environment, epoch), nothing of its own kept.

Whatever the application stores lies in the resources that it depends on, so the resource is derived: every version
is the same, and a branch is only the right to be bound.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
import psutil

from statefork.adapters.resources.web.edge import READY_PATH
from statefork.adapters.resources.web.server import AppServer, Launch
from statefork.engine.errors import ForeignHandle, NotReady, ResourceFailed
from statefork.engine.ports import Change, Needs, Owner, Route, Services, Strategy, Usage
from statefork.engine.tickets import TICKET_HEADER, sign
from statefork.journal.values import Binding, Branch, Conditions, Handle, Identity, Sealed

VERSION = "stateless"
_PROBE_S = 30.0
_HEAD_BYTES_MAX = 65536


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a contract may say of a ``web`` resource."""

    stack: Literal["django", "wsgi", "asgi", "rack", "php-fpm", "node"]
    settings: str  # django: its module; wsgi, asgi: "module:application"; else a file that describes the site
    host: str  # what the agent sees, e.g. "shop.example"
    stores: dict[str, str] = {}  # kind (database, media, search, cache, sessions; "database.<alias>") to resource
    path: str = ""  # directory with the project's modules, relative to the contract; empty = they are installed
    threads: int = 16
    requests_per_environment_max: int = 12  # of one environment at one time: its siblings keep the other threads
    probe: str = READY_PATH  # path asked through the gateway: answered with less than 400 when the site is ready
    start_s: float = 60.0
    grace_s: float = 2.0  # how long an unbind waits for what was cut off


class WebResource:
    """One application on one shared server (see engine.ports.Resource and Drainable)."""

    adapter = "web"

    def __init__(self, name: str, options: Options, services: Services) -> None:
        self.name = name
        self.options = options
        self._services = services
        self._sites: dict[str, Any] = {}  # environment to its site door, which outlives epochs
        self._bindings: dict[tuple[str, int], Binding] = {}
        self._proved: set[Identity] = set()  # activations that were reached through the gateway
        path = str((services.base_dir / options.path).resolve()) if options.path else ""
        self.server = AppServer(
            Launch(
                name=name,
                stack=options.stack,
                settings=options.settings,
                threads=options.threads,
                requests_per_environment_max=options.requests_per_environment_max,
                start_s=options.start_s,
                state=services.state,
                journal=services.journal,
                path=path,
                determinism=services.determinism,
            )
        )

    def strategy(self) -> Strategy:
        """One process for all environments."""
        return Strategy(
            name=f"shared {self.options.stack} server",
            reason=f"one process, {self.options.threads} threads; each request is bound by its signed ticket",
        )

    async def start(self) -> None:
        """Start the server. Idempotent."""
        await self.server.start()

    async def stop(self) -> None:
        """Close the site doors and end the server. Idempotent."""
        for env in list(self._sites):
            await self._sites.pop(env).close()
        self._bindings.clear()
        await self.server.stop()

    def process_ids(self) -> tuple[int, ...]:
        """The server's, and of what runs behind it (see engine.ports.Resident); empty while it is down."""
        if not self.server.pid:
            return ()
        behind = ()
        with contextlib.suppress(psutil.Error):
            behind = tuple(child.pid for child in psutil.Process(self.server.pid).children(recursive=True))
        return (self.server.pid, *behind)

    # -- versions: there is only one --------------------------------------------------------------------------

    def _version(self) -> Sealed:
        return Sealed(journal=self._services.journal, resource=self.name, adapter=self.adapter, version=VERSION)

    async def provision(self) -> Sealed:
        """The constant version."""
        return self._version()

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """The right to be bound as (environment, epoch)."""
        self._mine(sealed)
        return Branch(
            journal=self._services.journal,
            resource=self.name,
            adapter=self.adapter,
            id=f"{owner.env}-e{owner.epoch}",
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
        )

    async def seal(self, branch: Branch) -> Sealed:
        """The constant version."""
        self._mine(branch)
        return self._version()

    async def write_mark(self, branch: Branch) -> str:
        """Nothing is ever written here; the stores have marks of their own."""
        self._mine(branch)
        return VERSION

    async def digest(self, sealed: Sealed) -> str:
        """The digest of nothing."""
        self._mine(sealed)
        return hashlib.sha256(VERSION.encode()).hexdigest()

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """Nothing to carry."""
        self._mine(sealed)

    async def unpack(self, directory: Path) -> Sealed:
        """The constant version."""
        return self._version()

    async def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        """Two versions never differ."""
        self._mine(before)
        self._mine(after)
        nothing: tuple[Change, ...] = ()
        for change in nothing:
            yield change

    async def usage(self, handle: Handle) -> Usage:
        """Nothing on disk."""
        self._mine(handle)
        return Usage(private_bytes=0)

    async def inventory(self) -> AsyncIterator[Handle]:
        """The bindings of the running server; after a restart of the engine there are none."""
        for env, epoch in self.server.bound():
            yield await self.branch(self._version(), Owner(env=env, epoch=epoch))

    async def discard(self, handle: Handle) -> None:
        """Evict a branch that is still bound; versions cost nothing. Idempotent."""
        self._mine(handle)
        if isinstance(handle, Branch) and (handle.env, handle.epoch) in self.server.bound():
            await self._evict(handle.env, handle.epoch)

    def _mine(self, handle: Handle) -> None:
        if handle.journal != self._services.journal or handle.resource != self.name:
            raise ForeignHandle(
                f"the handle belongs to journal {handle.journal}, resource {handle.resource!r}", resource=self.name
            )

    # -- bindings ---------------------------------------------------------------------------------------------

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """Tell the server where the environment's stores are, and open its private base URL."""
        self._mine(branch)
        assert (branch.env, branch.epoch) == (identity.env, identity.epoch)
        await self.server.bind(identity.env, identity.epoch, identity.activation, self._stores(needs))
        try:
            site = self._sites.get(identity.env)
            if site is None:
                site = self._sites[identity.env] = await self._services.gateway.open_site(identity.env, self._route())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.server.release(identity.env, identity.epoch)
            raise
        binding = Binding(
            journal=self._services.journal,
            resource=self.name,
            adapter=self.adapter,
            branch=branch.id,
            identity=identity,
            address={
                "host": self.options.host,
                "upstream_host": "127.0.0.1",
                "upstream_port": self.server.port,
                "ticket_key_hex": self.server.ticket_key.hex(),
                "base_url": site.base_url,
            },
        )
        self._bindings[identity.env, identity.epoch] = binding
        return binding

    def _stores(self, needs: Needs) -> dict[str, Any]:
        stores = {}
        for kind, resource in self.options.stores.items():
            if resource not in needs.bindings:
                raise ResourceFailed(
                    f"store {kind!r} of {self.name!r} is resource {resource!r}, which is not bound",
                    hint=f"List {resource!r} in depends_on",
                    resource=self.name,
                )
            stores[kind] = dict(needs.bindings[resource].address)
        return stores

    def _route(self) -> Route:
        return Route(
            host=self.options.host,
            upstream_host="127.0.0.1",
            upstream_port=self.server.port,
            ticket_key=self.server.ticket_key,
        )

    async def probe(self, binding: Binding) -> None:
        """Ask the site through the gateway, as this very activation. Raises NotReady with what it answered.

        Once an activation's way through the gateway is proved, only its stores can have been replaced (when what was
        written during staging is taken back, at which time nothing is admitted): then the server is asked directly.
        """
        self._mine(binding)
        identity = binding.identity
        try:
            with anyio.fail_after(_PROBE_S):
                if identity in self._proved:
                    ticket = f"{TICKET_HEADER}: {sign(self.server.ticket_key, identity)}\r\n"
                    status, text = await _ask(self.server.port, self.options.host, READY_PATH, ticket)
                else:
                    status, text = await self._probe_door(identity)
        except (TimeoutError, OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise NotReady(f"{self.name} of {identity} did not answer: {error!r}", resource=self.name) from None
        if not 200 <= status < 400:
            raise NotReady(f"{self.name} of {identity} answered {status}: {text}", resource=self.name)
        self._proved.add(identity)

    async def _probe_door(self, identity: Identity) -> tuple[int, str]:
        door = await self._services.gateway.open_proxy(identity, (self._route(),))
        try:
            return await _ask(door.port, f"http://{self.options.host}", self.options.probe, "")
        finally:
            with anyio.CancelScope(shield=True):
                await door.close()

    async def forget(self, env: str) -> None:
        """Close the base URL of an environment that has ended. Idempotent."""
        site = self._sites.pop(env, None)
        if site is not None:
            await site.close()

    async def unbind(self, binding: Binding) -> None:
        """Cut the environment off, wait for what was running, and forget it."""
        self._mine(binding)
        key = (binding.identity.env, binding.identity.epoch)
        known = self._bindings.get(key)
        if known is not None and known.identity != binding.identity:
            return  # a later activation of the same epoch has taken over
        await self._evict(*key)

    async def _evict(self, env: str, epoch: int) -> None:
        binding = self._bindings.pop((env, epoch), None)
        if binding is not None:
            self._proved.discard(binding.identity)
        site = self._sites.get(env)
        if site is not None and binding is not None:
            await site.end(binding.identity)
        await self.server.terminate(env, epoch, self.options.grace_s)
        await self.server.release(env, epoch)

    async def set_conditions(self, binding: Binding, conditions: Conditions) -> None:
        """Nothing to do: every request brings them, and what a request has started keeps its own."""
        self._mine(binding)

    async def quiesce(self, branch: Branch) -> None:
        """Close the environment's connections and let none be opened. Raises ResourceBusy, naming the holder."""
        self._mine(branch)
        await self.server.call("quiesce", env=branch.env, epoch=branch.epoch)

    async def thaw(self, branch: Branch) -> None:
        """Connections may be opened again."""
        self._mine(branch)
        await self.server.call("thaw", env=branch.env, epoch=branch.epoch)

    # -- draining ---------------------------------------------------------------------------------------------

    async def pending(self, branch: Branch) -> tuple[str, ...]:
        """Requests that outlived their lease, threads and jobs that they started: each by name."""
        self._mine(branch)
        return await self.server.pending(branch.env, branch.epoch)

    async def drained(self, branch: Branch) -> None:
        """Return when nothing is pending."""
        self._mine(branch)
        await self.server.idle(branch.env, branch.epoch, self.server.pending)

    async def terminate(self, branch: Branch) -> tuple[str, ...]:
        """Cut whatever runs off from the stores, give it a moment to end, and name what lives on.

        New requests are served: a transition that is given up after this leaves a whole environment behind.
        """
        self._mine(branch)
        return await self.server.terminate(branch.env, branch.epoch, self.options.grace_s)


async def _ask(port: int, origin: str, path: str, headers: str) -> tuple[int, str]:
    """GET ``path``, from a proxy door where ``origin`` is a whole one; the status and the beginning of the body."""
    host = origin.removeprefix("http://")
    target = path if origin == host else origin + path
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n".encode())
        answer = b""
        try:
            while len(answer) < _HEAD_BYTES_MAX:
                answer += await stream.receive()
        except anyio.EndOfStream:
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise anyio.EndOfStream
    return int(words[1]), body[:500].decode(errors="replace")
