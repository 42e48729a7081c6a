"""Entering an environment: from a name to a lease on its present generation."""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType

from statefork.engine.conductor import Conductor
from statefork.engine.errors import StaleGeneration
from statefork.engine.leases import Gate, Kind, Lease, current_lease
from statefork.engine.staging import Context


class Entry:
    """The async context manager that activates a parked environment and takes a lease on it.

    One whose runtime died is recovered first: its last published generation serves, and what came after it is named
    lost.

    The lease is a child of the innermost lease that the caller holds on the environment, and so is granted while that
    one drains; otherwise it is a root. ``context`` is what the lease gives access to. Use it once.
    """

    __slots__ = ("_conductor", "_env", "_expect", "_holder", "_kind", "_lease", "context")

    context: Context

    def __init__(self, conductor: Conductor, env: str, holder: str, kind: Kind, expect: int | None = None) -> None:
        self._conductor = conductor
        self._env = env
        self._holder = holder
        self._kind: Kind = kind
        self._expect = expect
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        parent = self._parent()
        remote = self._conductor.ledger.remote
        if remote is not None and remote.away and (parent is None or self._kind == "action"):
            await remote.reachable()  # what is done would stand nowhere
        context = self._context()
        if context is not None and parent is None and context.gate.shut:
            context = await self._waited(context)
        if context is not None and parent is None and self._conductor.died(context):
            await self._conductor.recover(self._env, context)
            context = None
        if context is not None:
            return self._granted(context, parent)
        await self._conductor.known(self._env)
        slot = self._conductor.seating.claim(self._env) if self._conductor.needs_slot(self._env) else nullcontext()
        async with slot:  # held so that it does not give way before the lease is granted
            while context is None:
                await self._conductor.activate(self._env)
                context = self._conductor.live(self._env).context
            return self._granted(context, parent)

    async def _waited(self, context: Context | None) -> Context | None:
        """What serves once the freeze is over, where it may be waited for, or once what is in doubt is settled."""
        if context is not None and context.gate.ended and self._conductor.live(self._env).doubt:
            await self._conductor.settle(self._env)
            context = self._context()
        while context is not None and context.gate.shut and await context.gate.held_back():
            context = self._context()
        return context

    def _context(self) -> Context | None:
        live = self._conductor.lives.get(self._env)
        return live.context if live is not None else None

    def _granted(self, context: Context, parent: Lease | None) -> Lease:
        if parent is not None and parent.gate is not context.gate:
            raise parent.gate.stale()
        if self._expect is not None:
            self._check_epoch(context.gate, self._expect)
        self._lease = context.gate.lease(self._holder, self._kind, parent)
        self.context = context
        return self._lease.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        self._lease.leave(kind, error, trace)

    def _parent(self) -> Lease | None:
        lease = current_lease()
        while lease is not None and not (lease.env == self._env and lease.running):
            lease = lease.parent
        return lease

    def _check_epoch(self, gate: Gate, expected: int) -> None:
        if expected != gate.identity.epoch:
            raise StaleGeneration(
                f"epoch {expected} of {self._env} was asked for; now epoch {gate.identity.epoch} is served",
                environment=self._env,
                epoch=expected,
                epoch_now=gate.identity.epoch,
            )
