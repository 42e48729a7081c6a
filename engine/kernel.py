"""The kernel: one open journal, one contract, its resources, and every operation on environments.

Transitions of one environment follow each other in the order they were asked for; those of different environments run
side by side. Leases, actions and requests never wait for a transition: a frozen environment refuses them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from statefork.engine.acting import Acting, ActResult, Check, EvaluationContext
from statefork.engine.admission import Admitted, refuse
from statefork.engine.attempts import Attempts
from statefork.engine.bulk import Bulk, BulkResult
from statefork.engine.capsule import Capsule, Generation, World
from statefork.engine.collect import GcReport, collect
from statefork.engine.conductor import Conductor
from statefork.engine.contract import Contract
from statefork.engine.entry import Entry
from statefork.engine.errors import NotReady
from statefork.engine.keeping import keeping
from statefork.engine.keyed import Keys
from statefork.engine.ledger import Ledger
from statefork.engine.lifecycle import closing, opening
from statefork.engine.ports import AdmissionRequest, Blobs, Clock, RequestLease, Resource
from statefork.engine.provision import Bases
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import check_env_name
from statefork.engine.settings import DrainPolicy, Settings, SystemClock
from statefork.engine.slots import Slots
from statefork.engine.staging import Context
from statefork.journal.events import InputRecorded
from statefork.journal.log import Journal
from statefork.journal.values import Binding, Branch, Json, Moment, Observation

__all__ = [
    "ActResult",
    "BulkResult",
    "DrainPolicy",
    "EvaluationContext",
    "Kernel",
    "Settings",
    "open_kernel",
]

_SETTINGS = Settings()
_CLOCK = SystemClock()


class Kernel:
    """Implements :class:`statefork.engine.ports.Admission`. Made by :func:`open_kernel`."""

    def __init__(
        self, conductor: Conductor, attempts: Attempts, bases: Bases, blobs: Blobs, recovered: RecoveryReport
    ) -> None:
        self.world: World = conductor.ledger.world
        self.contract: Contract = conductor.contract
        self.resources: Mapping[str, Resource] = conductor.resources
        self.settings: Settings = conductor.settings
        self.recovered = recovered
        self.not_parked: tuple[str, ...] = ()  # once it is closed: whose tails the next opening has to give up
        self.environments: Mapping[str, Capsule] = MappingProxyType(self.world.environments)
        self.slots: Slots = conductor.seating.slots
        self._conductor = conductor
        self._ledger = conductor.ledger
        self._acting = Acting(conductor, attempts)
        self._bases = bases
        self._keys = Keys(self.world)
        self._bulk = Bulk(conductor, bases, self._keys)
        self._blobs = blobs

    # --- transitions ------------------------------------------------------------------------------------------------

    # With a ``key`` a command may be given again, by a caller that can't know whether it had happened: see
    # :mod:`statefork.engine.keyed`. All of them raise KeyReused, InvalidKey for a key that is none of theirs.

    async def create(self, env: str, *, activate: bool = True, key: str | None = None) -> Moment:
        """A new environment over the contract's bases; its generation 1 is bound and probed (unless told not to).

        Raises EnvironmentExists, UnknownRef (no name), TransitionAborted; the name stays free then.
        """
        check_env_name(env)
        async with self._keys.command(key, "create", env) as told:
            manifest = await self._bases.manifest()
            found = self._conductor.found
            return told.parts.get(1) or await found(env, "create", manifest, activate=activate, note=told.note(1))

    async def create_each(
        self, envs: Sequence[str], *, activate: bool = True, key: str | None = None
    ) -> list[BulkResult]:
        """Several at once, each of which succeeds or fails on its own; as many are bound as there are slots.

        Raises LimitReached, EnvironmentExists (a name given twice).
        """
        return await self._bulk.create(envs, activate=activate, key=key)

    async def snapshot(self, env: str, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Publish the present, continuing. Of a parked environment it is the head, and no generation is written.

        Raises DrainTimeout, TornCut, TransitionAborted, HeldByCaller.
        """
        async with self._keys.command(key, "snapshot", env) as told:
            return told.whole or await self._conductor.snapshot(env, drain, note=told.note())

    async def reset(self, env: str, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Back to the origin's components, as a new generation in a new epoch. Raises as ``restore`` does."""
        async with self._keys.command(key, "reset", env) as told:
            origin = self._conductor.usable(env).origin
            return told.parts.get(1) or await self._conductor.switch(env, "reset", origin, drain, note=told.note(1))

    async def reset_each(
        self, envs: Sequence[str], *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> list[BulkResult]:
        """Several at once, each of which succeeds or fails on its own. Raises LimitReached, EnvironmentExists."""
        return await self._bulk.reset(envs, drain=drain, key=key)

    async def restore(
        self, env: str, target: Moment, *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> Moment:
        """The components of any published generation of this contract, as a new generation in a new epoch.

        A parked environment stays parked. Raises UnknownRef, DrainTimeout, TransitionAborted, HeldByCaller.
        """
        self._usable(target)
        async with self._keys.command(key, "restore", env, str(target)) as told:
            return told.whole or await self._conductor.switch(env, "restore", target, drain, note=told.note())

    async def fork(
        self,
        source: Moment | str,
        children: Sequence[str] | int,
        *,
        activate: bool = True,
        drain: DrainPolicy | None = None,
        key: str | None = None,
    ) -> list[BulkResult]:
        """Children that continue from a published generation, or from the present of an environment (its name).

        The present is one continuing snapshot for all children; the source serves again when it is published, before
        the first child is staged. Each child then succeeds or fails on its own; as many are bound as there are slots.
        ``children``: their names, or how many. Raises what ``snapshot`` raises, UnknownRef, EnvironmentExists (a name
        given twice), LimitReached.
        """
        return await self._bulk.fork(source, children, activate=activate, drain=drain, key=key)

    async def clone(
        self,
        source: Moment | str,
        env: str,
        *,
        activate: bool = True,
        drain: DrainPolicy | None = None,
        key: str | None = None,
    ) -> Moment:
        """A new environment whose origin, generation 1, is the given moment (or the present of an environment)."""
        check_env_name(env)
        async with self._keys.command(key, "clone", str(source), env) as told:
            if told.whole:
                return told.whole
            moment = source if isinstance(source, Moment) else told.parts.get(1)
            if moment is None:
                moment = await self._conductor.snapshot(str(source), drain, note=told.note(1))
            manifest = self._usable(moment).manifest
            found = self._conductor.found
            return await found(env, "clone", manifest, source=moment, activate=activate, note=told.note())

    async def park(self, env: str, reason: str = "", *, drain: DrainPolicy | None = None) -> None:
        """Seal the tail (published as a snapshot where it is dirty) and unbind: the environment costs only disk."""
        await self._conductor.park(env, reason, drain)

    async def activate(self, env: str) -> None:
        """Bind and probe a parked environment. Acting on it or leasing it does so too."""
        await self._conductor.activate(env)

    async def retire(self, env: str, *, drain: DrainPolicy | None = None, key: str | None = None) -> None:
        """End an environment. What runs in it is revoked unless ``drain`` says otherwise; its history stays."""
        async with self._keys.command(key, "retire", env) as told:
            if not told.whole:
                await self._conductor.retire(env, drain, note=told.note())

    def pinned(self, env: str) -> AbstractContextManager[None]:
        """Inside the body the environment does not give its slot to another. Raises UnknownEnvironment."""
        self._conductor.usable(env)
        return self.slots.pinned(env)

    async def recover(self, env: str) -> Moment:
        """Give up the tail of an environment whose runtime died: its last published components serve again."""
        return await self._conductor.recover(env)

    def _usable(self, moment: Moment) -> Generation:
        generation = self.world.generation(moment)
        self._conductor.usable(moment.env)
        return generation

    # --- leases and what runs under them ----------------------------------------------------------------------------

    def lease(self, env: str, holder: str, *, expect: int | None = None) -> Entry:
        """A lease on the present, to enter with ``async with``; a child of the lease that the caller holds there.

        A parked environment is activated first. ``expect``: the epoch that the caller insists on. Raises
        EnvironmentFrozen, StaleGeneration, UnknownEnvironment, EnvironmentRetired; LeaseRevoked at its end.
        """
        return Entry(self._conductor, env, holder, "lease", expect)

    async def act(self, env: str, action: Mapping[str, Json], *, timeout_s: float | None = None) -> ActResult:
        """Carry out an action and observe, under one root lease. See :meth:`Acting.act` for what is a result.

        Raises InvalidAction (nothing was done), LeaseRevoked, RuntimeDied, and what ``lease`` raises.
        """
        self._conductor.usable(env)
        self._acting.check(action)
        entry = Entry(self._conductor, env, f"action {action.get('type')}", "action")
        async with entry as lease:
            deadline_s = self.settings.act_timeout_s if timeout_s is None else timeout_s
            return await self._acting.act(lease, entry.context, action, deadline_s)

    async def observe(self, env: str) -> Observation:
        """What the agent would see now, under a lease. Nothing is journaled. Raises ActionTimeout."""
        entry = Entry(self._conductor, env, "observation", "lease")
        async with entry as lease:
            return await self._acting.look(lease, entry.context)

    @asynccontextmanager
    async def raw(self, env: str) -> AsyncIterator[Any]:
        """The actor's native object (a page) for one opaque action."""
        entry = Entry(self._conductor, env, "opaque action", "action")
        async with entry as lease, self._acting.raw(lease, entry.context) as native:
            yield native

    async def evaluate(self, env: str, name: str, check: Check) -> float:
        """Judge the present under one root lease: everything that ``check`` reads is of one generation."""
        entry = Entry(self._conductor, env, f"evaluation {name}", "evaluation")
        async with entry as lease:
            return await self._acting.evaluate(lease, entry.context, name, check)

    # --- what the gateway needs -------------------------------------------------------------------------------------

    def admit(self, request: AdmissionRequest) -> AbstractAsyncContextManager[RequestLease]:
        """See :class:`statefork.engine.ports.Admission`."""
        return Admitted(self._conductor, request)

    def refuse(self, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
        """See :class:`statefork.engine.ports.Admission`."""
        refuse(self._conductor, request, status=status, code=code, detail=detail)

    def record_input(
        self, lease: RequestLease, *, method: str, url: str, headers: Mapping[str, str], body: bytes, status: int
    ) -> None:
        """See :class:`statefork.engine.ports.Admission`."""
        env = lease.identity.env
        self._ledger.ride(
            env,
            InputRecorded(
                at=self._ledger.clock.now(),
                env=env,
                generation=lease.generation,
                epoch=lease.identity.epoch,
                lease=lease.id,
                after_action=self.world.capsule(env).actions,
                method=method,
                url=url,
                headers=dict(headers),
                body=self._blobs.put(body) if body else "",
                status=status,
            ),
        )

    def hurry(self) -> None:
        """Give up what closing waits for, now or later: what is not parked by then is recovered at the next opening."""
        self._conductor.hurried.set()
        self._conductor.patience.cancel()

    async def hurried(self) -> None:
        """Return when somebody has called ``hurry``."""
        await self._conductor.hurried.wait()

    # --- looking ----------------------------------------------------------------------------------------------------

    def histories(self) -> Mapping[str, Capsule]:
        """Every environment whose history can be read: the retired ones too."""
        return self.environments

    def bindings(self, env: str) -> Mapping[str, Binding]:
        """Where the environment's resources are reachable now. Raises NotReady for a parked one."""
        context = self._context(env)
        return MappingProxyType(context.bindings)

    def branches(self, env: str) -> Mapping[str, Branch]:
        """The environment's writable branches now; empty for a parked one."""
        live = self._conductor.lives.get(env)
        return MappingProxyType(live.context.branches) if live is not None and live.context is not None else {}

    def _context(self, env: str) -> Context:
        self.world.capsule(env)
        live = self._conductor.lives.get(env)
        if live is None or live.context is None:
            raise NotReady(f"{env} is not bound now", hint="Activate it, or act on it.", environment=env)
        return live.context

    async def collect(self) -> GcReport:
        """Remove what no environment reaches. Waits until no transition runs, and holds new ones back meanwhile."""
        conductor = self._conductor
        async with conductor.sharing.alone():
            return await collect(self._ledger, self.contract, self.resources, conductor.handles())


@asynccontextmanager
async def open_kernel(
    *,
    journal: Journal,
    contract: Contract,
    resources: Mapping[str, Resource],
    blobs: Blobs,
    settings: Settings = _SETTINGS,
    clock: Clock = _CLOCK,
    pid: int | None = None,
) -> AsyncIterator[Kernel]:
    """Fold the journal, start the resources, settle what a crash left, and serve until the body ends.

    Closing parks every environment and stops the resources, also after an exception or a cancellation. ``pid`` is what
    the journal says of this process: its own number, unless two runs are to write the very same journal. Raises
    ContractError where ``resources`` are not the contract's, JournalCorrupt, and what starting a resource raises.
    """
    ledger = await Ledger.load(journal, clock, settle_s=settings.settle_s)
    conductor = Conductor(ledger, contract, resources, settings)
    number = os.getpid() if pid is None else pid
    attempts = Attempts(settings.act_join_s)
    try:
        async with opening(conductor, pid=number, release=version("statefork")) as (run, report), keeping(conductor):
            kernel = Kernel(conductor, attempts, Bases(conductor), blobs, report)
            try:
                yield kernel
            finally:
                kernel.not_parked = await closing(conductor, run)
    finally:
        await attempts.join(settings.discard_s)
