"""Running a transition: freeze → drain → stage → publish, and giving everything back when it fails.

A transition of an environment *waits* for the one before it (first come, first served); a caller that holds a lease on
the environment would wait for itself and gets HeldByCaller. Before the publish append the old generation serves, after
it the new one (I5). A failed or cancelled transition thaws the old context and leaves nothing staged behind (I9); if
that context can't be thawed its tail is lost, and a ``recover`` generation says so. Where an append stays in doubt the
environment stays frozen until the state directory is reopened.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import anyio

from statefork.engine.capsule import Capsule, Phase
from statefork.engine.collect import Sharing
from statefork.engine.contract import Contract
from statefork.engine.cut import take_cut
from statefork.engine.drain import Drain
from statefork.engine.errors import (
    ContractError,
    HeldByCaller,
    InDoubt,
    StateforkError,
    TransitionAborted,
)
from statefork.engine.leases import Gate, current_lease, lease_ids
from statefork.engine.ledger import Ledger
from statefork.engine.live import Live, Run, Timer
from statefork.engine.ports import Resource
from statefork.engine.settings import DrainPolicy, Settings
from statefork.engine.staging import ComponentFailed, Context, Staging, close_context, each, quietly
from statefork.engine.transitions import (
    Abort,
    Activate,
    Begin,
    Command,
    Found,
    Founding,
    NoteFork,
    Park,
    Publish,
    Recover,
    Retire,
    decide,
)
from statefork.journal.errors import JournalError
from statefork.journal.events import Operation
from statefork.journal.values import Component, Handle, Identity, Moment

__all__ = ["Conductor", "DrainPolicy"]

_logger = logging.getLogger(__name__)


class Conductor:
    """Every transition of every environment of one contract. ``lives`` is what is bound now."""

    def __init__(
        self, ledger: Ledger, contract: Contract, resources: Mapping[str, Resource], settings: Settings
    ) -> None:
        self.ledger = ledger
        self.contract = contract
        self.resources = resources
        self.settings = settings
        self.sharing = Sharing()
        self.lives: dict[str, Live] = {}
        self._ids = lease_ids()
        self._required = frozenset(contract.order)
        self._branches: dict[tuple[str, str], str] = {}  # (resource, branch) -> the environment that writes it

    def live(self, env: str) -> Live:
        """The environment's live record."""
        return self.lives.setdefault(env, Live())

    def usable(self, env: str) -> Capsule:
        """The capsule. Raises UnknownEnvironment, ContractError for one of another contract."""
        capsule = self.ledger.world.capsule(env)
        if capsule.contract != self.contract.digest:
            raise ContractError(
                f"{env} was made under another contract than the one that this engine runs",
                hint="Open the state directory with the contract it was made under; the journal holds its text.",
                environment=env,
                key="contract",
            )
        return capsule

    def handles(self) -> Iterator[Handle]:
        """Every branch and binding that a live context holds."""
        for live in self.lives.values():
            for context in (live.context, live.staged):
                if context is not None:
                    yield from context.branches.values()
                    yield from context.bindings.values()

    # --- the operations ---------------------------------------------------------------------------------------------

    async def found(
        self,
        env: str,
        how: Founding,
        manifest: Mapping[str, Component],
        *,
        source: Moment | None = None,
        origin: Moment | None = None,
        actions: int = 0,
        activate: bool = True,
    ) -> Moment:
        """A new environment whose first generation has these components. ``origin`` None: it is its own origin.

        Forks and clones name their ``source``, whose stream is told in the same append. Raises EnvironmentExists,
        TransitionAborted; a failed founding leaves the name free.
        """
        world, now = self.ledger.world, self.ledger.clock.now
        first = Moment(env=env, generation=1)
        live = self.live(env)
        async with live.lock, self.sharing.shared():
            command = Found(
                env=env,
                at=now(),
                transition=self.ledger.name(env),
                contract=self.contract.digest,
                how=how,
                origin=origin or first,
                source=source,
                inherited_actions=actions,
            )
            await self.ledger.commit(command)
            timer = Timer(self.ledger.clock.monotonic)
            staging = self._staging(live, env, 1, 1, manifest, timer) if activate else None
            try:
                staged = await self._stage(staging) if staging is not None else None
                commands: list[Command] = [self._publish(env, manifest, timer, staged=staged, source_actions=actions)]
                if source is not None and how != "create":
                    commands.append(
                        NoteFork(env=source.env, at=now(), generation=source.generation, child=env, how=how)
                    )
                await self.ledger.commit(*commands)
            except BaseException as error:
                await self._unfound(env, live, staging, error)
                raise _told(error, env, how, 0) from error
            if staged is not None:
                self._serve(live, staged)
        assert world.capsule(env).generation == 1
        return first

    async def snapshot(self, env: str, drain: DrainPolicy | None = None) -> Moment:
        """Publish the present, continuing: epoch, activation and bindings stay. A parked environment is its head."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                return capsule.moment
            async with self._frozen(env, live, "snapshot") as run:
                await self._drain(run, drain, may_fence=False)
                manifest = await take_cut(self.contract, self.resources, run, deadline_s=self.settings.seal_s)
                await self.ledger.commit(self._publish(env, manifest, run.timer, run=run))
            await self._thaw(env, run)
            return self.ledger.world.capsule(env).moment

    async def switch(self, env: str, op: Operation, source: Moment, drain: DrainPolicy | None = None) -> Moment:
        """Publish the components of ``source`` as the next generation, in a new epoch (reset, restore)."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            origin = self.ledger.world.generation(source)
            if capsule.phase is Phase.PARKED:
                begin = Begin(
                    env=env, at=self.ledger.clock.now(), transition=self.ledger.name(env), op=op, source=source
                )
                timer = Timer(self.ledger.clock.monotonic)
                publish = self._publish(env, origin.manifest, timer, source_actions=origin.actions)
                await self.ledger.commit(begin, publish)
                return self.ledger.world.capsule(env).moment
            async with self._frozen(env, live, op, source) as run:
                await self._drain(run, drain, may_fence=True)
                generation = capsule.generation + 1
                run.staging = self._staging(live, env, generation, generation, origin.manifest, run.timer)
                staged = await self._stage(run.staging)
                await self.ledger.commit(
                    self._publish(
                        env, origin.manifest, run.timer, run=run, staged=staged, source_actions=origin.actions
                    )
                )
            self._serve(live, staged)
            await self._close(run.context)
            return self.ledger.world.capsule(env).moment

    async def park(self, env: str, reason: str = "", drain: DrainPolicy | None = None) -> None:
        """Seal the tail, publishing it if it is dirty, and unbind. A parked environment stays parked."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                return
            async with self._frozen(env, live, "snapshot", begin=False) as run:
                await self._drain(run, drain, may_fence=False)
                manifest = await take_cut(self.contract, self.resources, run, deadline_s=self.settings.seal_s)
                capsule = self.ledger.world.capsule(env)
                commands: list[Command] = [Park(env=env, at=self.ledger.clock.now(), reason=reason)]
                if manifest != capsule.head.manifest or capsule.actions != capsule.head.actions:
                    commands = [run.begin, self._publish(env, manifest, run.timer, run=run), *commands]
                await self.ledger.commit(*commands)
            live.context = None
            await self._close(run.context)

    async def activate(self, env: str) -> None:
        """Bind and probe a parked environment. Does nothing where it serves already."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.SERVING:
                return
            timer = Timer(self.ledger.clock.monotonic)
            decide(capsule, Activate(env=env, at=0.0, activation=capsule.activation + 1))  # or say why not
            staging = self._staging(live, env, capsule.generation, capsule.epoch, capsule.head.manifest, timer)
            try:
                staged = await self._stage(staging)
                await self.ledger.commit(
                    Activate(
                        env=env,
                        at=self.ledger.clock.now(),
                        activation=staged.identity.activation,
                        timings_ms=timer.ms,
                    )
                )
            except BaseException as error:
                await self._unfound(env, live, staging, error)
                raise _told(error, env, "activate", capsule.generation) from error
            self._serve(live, staged)

    async def retire(self, env: str, drain: DrainPolicy | None = None) -> None:
        """End the environment. Its history stays."""
        async with self._turn(env) as live:
            command = Retire(env=env, at=self.ledger.clock.now())
            if live.context is None:
                await self.ledger.commit(command)
            else:
                async with self._frozen(env, live, "snapshot", begin=False, note=False) as run:
                    await self._drain(run, drain or self.settings.drain_at_end, may_fence=True)
                    await self.ledger.commit(command)
                await self._close(run.context)
            self.lives.pop(env, None)

    async def recover(self, env: str) -> Moment:
        """Give up the tail of an environment whose runtime died: the last published components, in a new epoch."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                return capsule.moment
            async with self._frozen(env, live, "snapshot", begin=False, note=False) as run:
                await self._drain(run, self.settings.drain_at_end, may_fence=True)
                await self.ledger.commit(self._recover(env))
            live.context = None
            await self._close(run.context)
            return self.ledger.world.capsule(env).moment

    # --- freezing and giving back -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, env: str) -> AsyncIterator[Live]:
        """This environment's transitions one after the other, none beside a collection."""
        lease = current_lease()
        while lease is not None:
            if lease.env == env and lease.running:
                raise HeldByCaller(
                    f"the caller holds a lease on {env} ({lease.holder}) and would wait for itself",
                    hint="Leave the lease first.",
                    environment=env,
                )
            lease = lease.parent
        self.usable(env)
        live = self.live(env)
        async with live.lock, self.sharing.shared():
            if live.doubt:
                raise InDoubt(
                    f"{env} is frozen: an append got no answer and could not be settled",
                    hint="Close the engine and open the state directory again: recovery settles it.",
                    environment=env,
                )
            yield live

    @asynccontextmanager
    async def _frozen(
        self,
        env: str,
        live: Live,
        op: Operation,
        source: Moment | None = None,
        *,
        begin: bool = True,
        note: bool = True,
    ) -> AsyncIterator[Run]:
        """Shut the gate around the body, which ends with the append that decides; whatever fails is given back.

        Without ``begin`` the freeze itself is not journaled (its only event is the one that ends it), with ``note`` a
        failure is. The body's caller opens a gate again after success.
        """
        command = Begin(env=env, at=self.ledger.clock.now(), transition=self.ledger.name(env), op=op, source=source)
        decide(self.ledger.world.capsule(env), command)
        context = live.context
        assert context is not None, "a serving environment has a context"
        drain = Drain(self.ledger, self.resources, context, names_max=self.settings.held_names_max)
        run = Run(live, context, command, drain, Timer(self.ledger.clock.monotonic))
        context.gate.shut_for(f"{op} is under way")
        try:
            if begin:
                with run.timer("freeze"):
                    await self.ledger.commit(command)
            yield run
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._give_back(env, run, error, note=note)
            told = _told(error, env, op, context.gate.generation)
            if told is error:
                raise
            raise told from error

    async def _give_back(self, env: str, run: Run, error: BaseException, *, note: bool) -> None:
        if isinstance(error, InDoubt):
            run.live.doubt = True
            return
        await self._discard(run.live, run.staging)
        reached = self.ledger.world.reachable() if run.sealed else frozenset()
        for name, sealed in run.sealed.items():
            if (name, sealed.version) not in reached:
                await quietly(name, "discard", self.resources[name].discard(sealed), self.settings.discard_s)
        if await self._abort(env, run.live, error, run if note else None):
            await self._thaw(env, run, published=False)

    async def _unfound(self, env: str, live: Live, staging: Staging | None, error: BaseException) -> None:
        """Give back a founding or an activation: nothing served before it."""
        if isinstance(error, InDoubt):
            live.doubt = True
            return
        with anyio.CancelScope(shield=True):
            await self._discard(live, staging)
            await self._abort(env, live, error, None)

    async def _abort(self, env: str, live: Live, error: BaseException, run: Run | None) -> bool:
        """Journal the end of a transition that was begun; False when that is impossible: it stays frozen then."""
        capsule = self.ledger.world.capsule(env)
        commands: list[Command] = []
        if capsule.transition is not None or run is not None:
            code, component = _code(error), error.component if isinstance(error, ComponentFailed) else ""
            held = run.drain.held if run is not None else ()
            abort = Abort(
                env=env, at=self.ledger.clock.now(), code=code, reason=str(error), component=component, held=held
            )
            commands = [abort] if capsule.transition is not None or run is None else [run.begin, abort]
        try:
            if commands:
                await self.ledger.commit(*commands)
        except (JournalError, InDoubt):
            _logger.exception("the abort of a transition of %s can't be journaled; it stays frozen", env)
            live.doubt = True
            return False
        return True

    async def _thaw(self, env: str, run: Run, *, published: bool = True) -> None:
        """Let the context serve again. Where that fails its tail is given up: after a publish nothing was in it."""

        async def thaw(name: str) -> None:
            if name in run.quiesced:
                await self.resources[name].thaw(run.context.branches[name])

        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(self.settings.seal_s):
                    await each(self.contract, thaw, doing="thawing")
            except Exception as error:
                _logger.exception("%s can't be thawed and is bound anew at its next use", env)
                await self._lose_context(env, run, f"could not be thawed: {error}", published=published)
            else:
                run.context.gate.open(self.ledger.world.capsule(env).generation)

    async def _lose_context(self, env: str, run: Run, reason: str, *, published: bool) -> None:
        command = Park(env=env, at=self.ledger.clock.now(), reason=reason) if published else self._recover(env)
        try:
            await self.ledger.commit(command)
        except (JournalError, InDoubt):
            _logger.exception("the loss of %s's context can't be journaled; it stays frozen", env)
            run.live.doubt = True
            return
        run.live.context = None
        await self._close(run.context)

    # --- parts ------------------------------------------------------------------------------------------------------

    async def _drain(self, run: Run, policy: DrainPolicy | None, *, may_fence: bool) -> None:
        with run.timer("drain"):
            await run.drain.run(policy or self.settings.drain, may_fence=may_fence)

    def _publish(
        self,
        env: str,
        manifest: Mapping[str, Component],
        timer: Timer,
        *,
        run: Run | None = None,
        staged: Context | None = None,
        source_actions: int = 0,
    ) -> Publish:
        assert run is None or not run.context.gate.live, "I3: publish while a lease is live"
        return Publish(
            env=env,
            at=self.ledger.clock.now(),
            manifest=manifest,
            required=self._required,
            held=run.drain.held if run is not None else (),
            source_actions=source_actions,
            activation=staged.identity.activation if staged is not None else 0,
            timings_ms=timer.ms,
        )

    def _recover(self, env: str) -> Recover:
        return Recover(env=env, at=self.ledger.clock.now(), transition=self.ledger.name(env))

    def _staging(
        self,
        live: Live,
        env: str,
        generation: int,
        epoch: int,
        manifest: Mapping[str, Component],
        timer: Timer,
    ) -> Staging:
        live.activation = max(live.activation, self.ledger.world.capsule(env).activation) + 1
        identity = Identity(env=env, epoch=epoch, activation=live.activation)
        gate = Gate(identity, generation, self._ids, self.ledger.clock.monotonic)
        staging = Staging(self.contract, self.resources, gate, manifest, timer)
        live.staged = staging.context
        return staging

    async def _stage(self, staging: Staging) -> Context:
        return await staging.stage(deadline_s=self.settings.stage_s, requests_s=self.settings.staging_requests_s)

    async def _discard(self, live: Live, staging: Staging | None) -> None:
        live.staged = None
        if staging is not None:
            await staging.discard(deadline_s=self.settings.discard_s)

    def _serve(self, live: Live, context: Context) -> None:
        for name, branch in context.branches.items():
            owner = self._branches.setdefault((name, branch.id), branch.env)
            assert owner == context.identity.env == branch.env, f"I6: {owner} and {branch.env} share a branch of {name}"
        live.context, live.staged = context, None
        context.gate.open(context.gate.generation)

    async def _close(self, context: Context) -> None:
        for name, branch in context.branches.items():
            self._branches.pop((name, branch.id), None)
        await close_context(self.contract, self.resources, context, deadline_s=self.settings.discard_s)


def _code(error: BaseException) -> str:
    if isinstance(error, ComponentFailed | StateforkError):
        return error.code
    return "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "failed"


def _told(error: BaseException, env: str, op: str, generation: int) -> BaseException:
    """The error as the caller gets it: what stopped a transition becomes TransitionAborted, with all the facts."""
    if isinstance(error, TransitionAborted):
        error.facts = {"environment": env, "operation": op, "generation": generation, **error.facts}
        return error
    if isinstance(error, ComponentFailed):
        serving = f"generation {generation} serves on" if generation else "nothing of it is left"
        return TransitionAborted(
            f"{op} of {env} was aborted: {error}",
            hint=f"{serving.capitalize()}.",
            environment=env,
            operation=op,
            generation=generation,
            component=error.component,
            reason=str(error.cause),
            code=error.code,
        )
    return error
