"""What the gateway's tests stand on: an admission with the rules of engine.ports, small enough to be read whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from statefork.engine.errors import EnvironmentFrozen, LeaseRevoked, StaleGeneration, UnknownEnvironment
from statefork.engine.ports import AdmissionRequest
from statefork.journal.errors import StateforkError
from statefork.journal.values import Identity

MESSAGES = ("websocket-message", "event-stream-message")


class Lease:
    """A lease with a scope that ends its body."""

    def __init__(self, identity: Identity, request: AdmissionRequest, root: bool, spoilt: dict[str, str]) -> None:
        self.id = 1
        self.identity = identity
        self.generation = 1
        self.root = root
        self.conditions = ""
        self.request = request
        self.scope = anyio.CancelScope()
        self.carried: list[str] = []
        self.spoilt = spoilt

    def spoil(self, reason: str) -> None:
        """See engine.ports.RequestLease."""
        self.spoilt[self.request.url] = reason

    @contextmanager
    def carry(self, name: str) -> Iterator[None]:
        """See engine.ports.RequestLease."""
        self.carried.append(name)
        try:
            yield
        finally:
            self.carried.remove(name)


class Environment:
    """One environment's control state."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.frozen = False
        self.acting = False  # an action's root lease is live
        self.changed = anyio.Event()

    def change(self, **values: Any) -> None:
        """Set values, and wake whoever is held."""
        self.__dict__.update(values)
        self.changed.set()
        self.changed = anyio.Event()


class Doorkeeper:
    """An Admission. ``refusals`` and ``inputs`` are what a journal would hold."""

    def __init__(self) -> None:
        self.envs: dict[str, Environment] = {}
        self.leases: list[Lease] = []
        self.granted: list[AdmissionRequest] = []
        self.refusals: list[tuple[int, str, str, str]] = []
        self.inputs: list[tuple[str, str, bytes, int]] = []
        self.spoilt: dict[str, str] = {}  # by URL: how the server failed
        self.moved = anyio.Event()

    def add(self, env: str, epoch: int = 1, activation: int = 1) -> Identity:
        """A serving environment."""
        identity = Identity(env=env, epoch=epoch, activation=activation)
        self.envs[env] = Environment(identity)
        return identity

    def _move(self) -> None:
        self.moved.set()
        self.moved = anyio.Event()

    async def until(self, condition: Any) -> None:
        """Wait until ``condition()`` holds; looked at whenever a lease begins or ends, or something is refused."""
        with anyio.fail_after(20):
            while not condition():
                await self.moved.wait()

    async def until_quiet(self) -> None:
        """Wait until no lease is live. A client has its response a moment before the lease ends."""
        await self.until(lambda: not self.leases)

    def _admit(self, request: AdmissionRequest) -> Lease:
        env = self.envs.get(request.env)
        if env is None:
            raise UnknownEnvironment(f"no environment {request.env!r}")
        claimed = request.identity or env.identity
        pinned = request.pinned_epoch
        if claimed != env.identity or (pinned is not None and pinned != env.identity.epoch):
            raise StaleGeneration(
                f"the request is of epoch {pinned or claimed.epoch}, {request.env} is at epoch {env.identity.epoch}",
                asked=pinned or claimed.epoch,
                present=env.identity.epoch,
            )
        if env.frozen and not env.acting:
            raise EnvironmentFrozen(f"{request.env} is frozen", environment=request.env)
        return Lease(env.identity, request, root=not env.acting, spoilt=self.spoilt)

    @asynccontextmanager
    async def admit(self, request: AdmissionRequest) -> AsyncIterator[Lease]:
        """See engine.ports.Admission."""
        env = self.envs.get(request.env)
        while env is not None and env.frozen and request.kind in MESSAGES:
            await env.changed.wait()
        try:
            lease = self._admit(request)
        except StateforkError as error:
            self.refusals.append((0, error.code, request.method, request.url))
            self._move()
            raise
        self.leases.append(lease)
        self.granted.append(request)
        self._move()
        try:
            with lease.scope:
                yield lease
        finally:
            self.leases.remove(lease)
            self._move()
        if lease.scope.cancelled_caught:
            raise LeaseRevoked(f"the lease of {request.url} was revoked")

    def refuse(self, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
        """See engine.ports.Admission."""
        self.refusals.append((status, code, request.method, request.url))
        self._move()

    def record_input(self, lease: Lease, *, method: str, url: str, headers: Any, body: bytes, status: int) -> None:
        """See engine.ports.Admission."""
        assert lease in self.leases
        self.inputs.append((method, url, body, status))
        self._move()

    async def revoke_all(self) -> None:
        """Cancel every lease and join it."""
        for lease in tuple(self.leases):
            lease.scope.cancel()
        await self.until_quiet()
