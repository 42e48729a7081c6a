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
from statefork.engine.admission import Admitted, record_input, refuse
from statefork.engine.arriving import Intake
from statefork.engine.attempts import Attempts
from statefork.engine.beside import beside
from statefork.engine.bulk import Bulk, BulkResult
from statefork.engine.capsule import Capsule, Generation
from statefork.engine.collect import Counted, GcReport, nobody_counts
from statefork.engine.conditions import Conditioning
from statefork.engine.conductor import Conductor
from statefork.engine.contract import Contract
from statefork.engine.cut import Keep
from statefork.engine.entry import Entry
from statefork.engine.errors import NotReady, OutOfRange
from statefork.engine.fencing import fencing
from statefork.engine.holding import checked
from statefork.engine.keeping import keeping
from statefork.engine.keyed import Keys
from statefork.engine.ledger import Ledger
from statefork.engine.lifecycle import Tell, closing, nobody_listens, opening
from statefork.engine.making import Making, published
from statefork.engine.outside import Outside
from statefork.engine.policy import AS_IT_IS, DRAIN, Choice
from statefork.engine.ports import AdmissionRequest, Blobs, Clock, RequestLease, Resource
from statefork.engine.provision import Bases
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import check_env_name
from statefork.engine.settings import DrainPolicy, Settings, SystemClock
from statefork.engine.slots import Slots
from statefork.engine.upkeep import Upkeep
from statefork.engine.world import World
from statefork.journal.errors import ClaimLost
from statefork.journal.log import Journal
from statefork.journal.values import Binding, Branch, Json, Moment, Observation

__all__ = ["ActResult", "BulkResult", "DrainPolicy", "EvaluationContext", "Kernel", "Settings", "open_kernel"]

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
        self.conditioning: Conditioning = conductor.conditioning
        self._conductor = conductor
        self._ledger = conductor.ledger
        self._acting = Acting(conductor, attempts)
        self._bases = bases
        self._keys = Keys(self.world)
        self._bulk = Bulk(conductor, bases, self._keys)
        self.intake = Intake(conductor, bases.manifest)
        self.upkeep = Upkeep(conductor, self._keys)
        self._blobs = blobs
        self.outside = Outside(conductor.ledger, conductor.contract, blobs)

    # --- transitions ------------------------------------------------------------------------------------------------

    # With a ``key`` a command may be given again, by a caller that can't know whether it had happened: see
    # :mod:`statefork.engine.keyed`. All of them raise KeyReused, InvalidKey for a key that is none of theirs.

    async def create(
        self, env: str, *, activate: bool = True, key: str | None = None, choice: Choice = AS_IT_IS
    ) -> Moment:
        """A new environment over the contract's bases; its generation 1 is bound and probed (unless told not to).

        ``choice``: the policies that hold for it. Raises EnvironmentExists, UnknownRef (no name), ContractError (no
        policy), TransitionAborted; the name stays free then.
        """
        check_env_name(env)
        choice = checked(choice)
        async with self._keys.command(key, "create", env, *choice.words()) as told:
            if done := told.parts.get(1):
                return done
            manifest = await self._bases.manifest()
            found = self._conductor.found
            return await found(env, "create", manifest, activate=activate, note=told.note(1), choice=choice)

    async def create_each(
        self,
        envs: Sequence[str],
        *,
        activate: bool = True,
        key: str | None = None,
        choice: Choice = AS_IT_IS,
        count: Counted = nobody_counts,
    ) -> list[BulkResult]:
        """Several at once, each on its own; as many are bound as there are slots. Raises as Bulk.create does."""
        return await self._bulk.create(envs, activate=activate, key=key, choice=choice, count=count)

    async def snapshot(self, env: str, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Publish the present, continuing. Of a parked environment it is the head, and no generation is written.

        Raises DrainTimeout, TornCut, TransitionAborted, HeldByCaller.
        """
        async with self._keys.command(key, "snapshot", env) as told:
            return told.whole or await self._conductor.snapshot(env, drain, note=told.note())

    async def publish_changes(self, env: str) -> Moment:
        """As ``snapshot``; where nothing was written since the last generation, it is that one."""
        return await self._conductor.keep_up(env, DRAIN, only_changed=True)

    async def reset(self, env: str, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Back to the origin's components, as a new generation in a new epoch. Raises as ``restore`` does."""
        async with self._keys.command(key, "reset", env) as told:
            origin = (await self._conductor.known(env)).origin
            return told.parts.get(1) or await self._conductor.switch(env, "reset", origin, drain, note=told.note(1))

    async def reset_each(
        self,
        envs: Sequence[str],
        *,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        count: Counted = nobody_counts,
    ) -> list[BulkResult]:
        """Several at once, each of which succeeds or fails on its own. Raises LimitReached, EnvironmentExists."""
        return await self._bulk.reset(envs, drain=drain, key=key, count=count)

    async def restore(
        self, env: str, target: Moment | Making, *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> Moment:
        """The components of any published generation of this contract, as a new generation in a new epoch.

        One that is not published is made first. A parked environment stays parked. Raises UnknownRef, DrainTimeout,
        TransitionAborted, HeldByCaller, and what making it raises.
        """
        async with self._keys.command(key, "restore", env, str(target)) as told:
            if told.whole:
                return told.whole
            await self._conductor.known(env)  # before anything is made for it
            async with published(target) as moment:
                await self._known(moment)
                return await self._conductor.switch(env, "restore", moment, drain, note=told.note())

    async def fork(
        self,
        source: Moment | str,
        children: Sequence[str] | int,
        *,
        activate: bool = True,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        asked: str = "",
        helps: str = "",
        count: Counted = nobody_counts,
    ) -> list[BulkResult]:
        """Children that continue from a published generation, or from the present of an environment (its name).

        The present is one continuing snapshot for all children; the source serves again when it is published, before
        the first child is staged. Each child then succeeds or fails on its own; as many are bound as there are slots.
        ``children``: their names, or how many. ``helps``: what they are there for, where they are of use to the caller
        alone, who retires them: where that is cut short, the next opening does. Raises what ``snapshot`` raises,
        UnknownRef, EnvironmentExists (a name given twice), LimitReached.
        """
        return await self._bulk.fork(
            source, children, activate=activate, drain=drain, key=key, asked=asked, helps=helps, count=count
        )

    async def promise(self, env: str, kind: str) -> str:
        """A name for a child of an environment that nobody bears, nor is promised until ``let_go``: ``env-kindN``."""
        return await self._bulk.promise(env, kind)

    def let_go(self, name: str) -> None:
        """A name that was promised is borne now, or not wanted."""
        self._bulk.let_go(name)

    def led_to(self, key: str | None) -> Moment | None:
        """What a command with this key has led to as a whole; None where it was not given, or is not done."""
        known = self.world.answers.get(key) if key is not None else None
        return known.parts.get(0) if known is not None else None

    async def done(self, key: str, env: str) -> None:
        """What a command with this key, of which parts are answered, was to lead to is there now."""
        await self._conductor.done(key, env)

    async def clone(
        self,
        source: Moment | Making | str,
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
            if isinstance(source, str):
                source = told.parts.get(1) or await self._conductor.snapshot(source, drain, note=told.note(1, of=2))
            async with published(source) as moment:
                manifest = (await self._known(moment)).manifest
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

    async def _known(self, moment: Moment) -> Generation:
        await self._ledger.look_up(moment.env)
        generation = self.world.kept(moment)
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

        Raises InvalidAction, OutOfRange (nothing was done), LeaseRevoked, RuntimeDied, and what ``lease`` raises.
        """
        await self._conductor.known(env)
        self._acting.check(action)
        if timeout_s is not None and not timeout_s > 0:
            raise OutOfRange(f"an action can't take {timeout_s:g} s", what="timeout_s", asked=timeout_s)
        entry = Entry(self._conductor, env, f"action {action.get('type')}", "action")
        async with entry as lease:
            deadline_s = self.settings.act_timeout_s if timeout_s is None else timeout_s
            result = await self._acting.act(lease, entry.context, action, deadline_s)
        if result.outcome != "unknown":
            await self.upkeep.after_action(env)
        return result

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
        await self.upkeep.after_action(env)

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
        digest = self._blobs.put(body) if body else ""
        record_input(self._ledger, lease, method=method, url=url, headers=headers, body=digest, status=status)

    def hurry(self) -> None:
        """Give up what closing waits for, now or later: what is not parked by then is recovered at the next opening."""
        self._conductor.hurried.set()
        self._conductor.patience.cancel()

    async def hurried(self) -> None:
        """Return when somebody has called ``hurry``."""
        await self._conductor.hurried.wait()

    async def fenced(self) -> ClaimLost:
        """Return when another engine has taken over: nothing is served any more, and this one is to be closed."""
        await self._conductor.taken_over.wait()
        assert self._conductor.fenced is not None
        return self._conductor.fenced

    async def find(self, env: str) -> Capsule:
        """The environment; the journal is asked whose a name is that is none of ours.

        Raises UnknownEnvironment, and EnvironmentElsewhere where it lives in another state directory.
        """
        await self._ledger.look_up(env)
        return self.world.capsule(env)

    def in_doubt(self, env: str) -> bool:
        """Whether the environment is frozen because an append got no answer; its next command asks again."""
        return bool(self._conductor.live(env).doubt)

    def histories(self) -> Mapping[str, Capsule]:
        """Every environment whose history can be read: the retired ones too."""
        return self.environments

    def bindings(self, env: str) -> Mapping[str, Binding]:
        """Where the environment's resources are reachable now, in the contract's order. Raises NotReady, if parked."""
        self.world.capsule(env)
        live = self._conductor.lives.get(env)
        if live is None or live.context is None:
            raise NotReady(f"{env} is not bound now", hint="Activate it, or act on it.", environment=env)
        bound = live.context.bindings
        return MappingProxyType({name: bound[name] for name in self.contract.resources if name in bound})

    def branches(self, env: str) -> Mapping[str, Branch]:
        """The environment's writable branches now; empty for a parked one."""
        live = self._conductor.lives.get(env)
        return MappingProxyType(live.context.branches) if live is not None and live.context is not None else {}

    async def collect(self, count: Counted = nobody_counts) -> GcReport:
        """Remove what no environment reaches. Waits until no transition runs, and holds new ones back meanwhile."""
        return await self.upkeep.collect(count)


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
    keep: Keep | None = None,
    place: str = "",
    where: str = "",
    tell: Tell = nobody_listens,
) -> AsyncIterator[Kernel]:
    """Fold the journal, start the resources, settle what a crash left, and serve until the body ends.

    Closing parks every environment and stops the resources, also after an exception or a cancellation. ``pid`` is what
    the journal says of this process: its own number, unless two runs are to write the very same journal. ``keep`` is
    awaited before what was sealed is published; what it raises aborts the transition. ``place`` is the name of the
    state directory where several share the journal: only what it has is served, recovered and collected, and the
    resources' handles bear its name; ``where`` tells people where it is. Raises ContractError where ``resources`` are
    not the contract's, JournalCorrupt, and what starting a resource raises.
    """
    ledger = await Ledger.load(journal, clock, settle_s=settings.settle_s, place=place)
    conductor = Conductor(ledger, contract, resources, settings)
    conductor.keep = keep
    number = os.getpid() if pid is None else pid
    attempts = Attempts(settings.act_join_s)
    try:
        async with (
            opening(conductor, pid=number, release=version("statefork"), where=where, tell=tell) as (run, report),
            keeping(conductor),
            fencing(conductor),
            beside(conductor.pruning.run),
        ):
            kernel = Kernel(conductor, attempts, Bases(conductor), blobs, report)
            try:
                yield kernel
            finally:
                kernel.not_parked = await closing(conductor, run)
    finally:
        await attempts.join(settings.discard_s)
