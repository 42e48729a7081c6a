"""Whose turn it is, and giving back: the order of an environment's transitions, and what happens when one fails.

A transition of an environment *waits* for the one before it (first come, first served); a caller that holds a lease on
the environment would wait for itself and gets HeldByCaller. A failed or cancelled transition thaws the old context and
leaves nothing staged behind (I9); if that context can't be thawed its tail is lost, and a ``recover`` generation says
so. Where an append stays in doubt the environment stays frozen until the journal can be asked; where another engine has
taken over, all of them do for good, and nothing that lies in the world is touched any more.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import anyio

from statefork.engine.aborted import add_facts, as_aborted, code_of
from statefork.engine.capsule import Capsule
from statefork.engine.collect import Sharing
from statefork.engine.commands import Abort, Begin, Park, Publish, Recover
from statefork.engine.conditions import Conditioning
from statefork.engine.contract import Contract
from statefork.engine.cut import Keep
from statefork.engine.decisions import decide
from statefork.engine.drain import Drain
from statefork.engine.errors import (
    ContractError,
    EngineClosed,
    HeldByCaller,
    InDoubt,
    LimitReached,
    StateforkError,
)
from statefork.engine.leases import Gate, current_lease, lease_ids
from statefork.engine.ledger import Ledger
from statefork.engine.live import Doubt, Live, Lives, Run, Timer
from statefork.engine.ports import Keeper, Mortal, Resource
from statefork.engine.pruning import Pruning
from statefork.engine.seating import Seating
from statefork.engine.settings import DrainPolicy, Settings
from statefork.engine.staging import ComponentFailed, Context, Staging, close_context, each, quietly
from statefork.journal.batch import own_copy
from statefork.journal.errors import ClaimLost, JournalError
from statefork.journal.events import Operation
from statefork.journal.values import Component, Handle, Identity, Moment

_logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


def in_own_task(work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Run a coroutine function in a task of its own, joined before it returns.

    ``asyncio.Task.cancel`` goes through shielded scopes. It reaches only the task it is called on, which here just
    waits; the task group turns it into a cancellation that respects the shields around publish and clean-up.
    """

    @functools.wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        results: list[R] = []
        errors: list[Exception] = []

        async def body() -> None:
            try:
                results.append(await work(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised again below, outside the group
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(body)
        if errors:
            raise errors[0]
        return results[0]

    return run


class Turns:
    """The live side of every environment of one contract. ``lives``: what is bound now."""

    def __init__(
        self, ledger: Ledger, contract: Contract, resources: Mapping[str, Resource], settings: Settings
    ) -> None:
        self.ledger = ledger
        self.contract = contract
        self.resources = resources
        self.settings = settings
        self.sharing = Sharing()
        self.pruning = Pruning(ledger, contract, resources, self.sharing, parallel_max=settings.parallel_max)
        self.patience = anyio.CancelScope()  # around the parking of everything at the end
        self.hurried = anyio.Event()  # nobody has patience any more
        self.keep: Keep | None = None  # for what the sealed versions lie on
        self.fenced: ClaimLost | None = None
        self.taken_over = anyio.Event()  # ``fenced`` says by whom: another engine
        self.closing = False  # nothing begins any more but the parking of everything
        self.lives = Lives(ledger.world)
        self.conditioning = Conditioning(contract, resources, ledger.clock, self.lives)
        self.seating = Seating(ledger, resources, settings, self.lives, self.give_way)
        self._ids = lease_ids()
        self._required = frozenset(contract.order)
        # Found once: to ask an object whether it implements a protocol takes longer than all else that a lease does.
        self._mortals = {name: found for name, found in resources.items() if isinstance(found, Mortal)}
        self._branches: dict[tuple[str, str], str] = {}  # (resource, branch) -> the environment that writes it

    def live(self, env: str) -> Live:
        """The environment's live record; at rest an empty one, which is not kept."""
        return self.lives.get(env) or Live()

    def usable(self, env: str) -> Capsule:
        """The capsule. Raises UnknownEnvironment, ContractError for one of another contract."""
        capsule = self.ledger.world.capsule(env)
        if capsule.contract != self.contract.digest:
            made_under = self.ledger.world.contracts.get(capsule.contract)
            name = f"{made_under.name} ({capsule.contract[:12]})" if made_under is not None else capsule.contract[:12]
            raise ContractError(
                f"{env} was made under contract {name}, and this engine runs {self.contract.name} "
                f"({self.contract.digest[:12]})",
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

    async def give_way(self, env: str) -> str:
        """Park an environment whose slot is needed, if it is still idle; else say why not."""
        raise NotImplementedError

    async def _settle(self, env: str, live: Live) -> None:
        """Ask what became of the append in doubt, and finish or give back what it belonged to. Raises InDoubt."""
        raise NotImplementedError

    # --- freezing and giving back -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, env: str, *, at_end: bool = False) -> AsyncIterator[Live]:
        """This environment's transitions one after the other, none beside a collection.

        Raises EngineClosed when the engine closes and this is not ``at_end``, part of that.
        """
        lease = current_lease()
        while lease is not None:
            if lease.env == env and lease.running:
                raise HeldByCaller(
                    f"the caller holds a lease on {env} ({lease.holder}) and would wait for itself",
                    hint="Leave the lease first.",
                    environment=env,
                )
            lease = lease.parent
        await self.known(env)
        try:
            with self.lives.held(env) as live:
                self._check_queue(env, live)
                async with live.lock, self.sharing.shared():
                    self._check_open(at_end=at_end)
                    if live.doubt:
                        await self._settle(env, live)
                    yield live
        finally:
            self.seating.slots.look_again()

    async def known(self, env: str) -> Capsule:
        """The same, after the journal was asked whose an unknown name is. Raises EnvironmentElsewhere, too."""
        await self.ledger.look_up(env)
        return self.usable(env)

    def fence(self, lost: ClaimLost) -> None:
        """Another engine has taken over: nothing here serves or begins any more, and what runs is cancelled."""
        self.fenced = self.fenced or lost
        self.taken_over.set()
        for env, live in self.lives.items():
            if not live.doubt:
                self._doubt(env, live, Doubt())
            if live.context is not None:
                live.context.gate.revoke_all("another engine has taken over")

    def _check_open(self, *, at_end: bool = False) -> None:
        if self.fenced is not None:
            raise own_copy(self.fenced)
        if self.closing and not at_end:
            raise EngineClosed.of()

    def _check_queue(self, env: str, live: Live) -> None:
        most = self.settings.waiting_max
        if live.lock.statistics().tasks_waiting >= most:
            raise LimitReached.of("waiting_max", most, f"{most} commands wait for their turn on {env}", environment=env)

    @asynccontextmanager
    async def _frozen(self, live: Live, begin: Begin, *, quiet: str = "", hold_s: float = 0.0) -> AsyncIterator[Run]:
        """Shut the gate around the body, which ends with the append that decides; whatever fails is given back.

        ``quiet`` names an operation that has no transition of its own (park, retire): its freeze is not journaled. The
        body's caller opens a gate again after success. Newcomers wait ``hold_s`` seconds before they are refused.
        """
        env, what = begin.env, quiet or begin.op
        decide(self.ledger.world.capsule(env), begin)
        context = live.context
        assert context is not None, "a serving environment has a context"
        drain = Drain(self.ledger, self.resources, context, names_max=self.settings.held_names_max)
        run = Run(live, context, begin, drain, Timer(self.ledger.clock.monotonic))
        context.gate.shut_for(f"{what} is under way", hold_s=hold_s)
        try:
            if not quiet:
                with run.timer("freeze"):
                    await self.ledger.commit(begin)
            yield run
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._give_back(env, run, error)
            if isinstance(error, ComponentFailed):
                raise as_aborted(error, env, what, context.gate.generation, begin.source) from error.cause
            add_facts(error, env, what, context.gate.generation, begin.source)
            raise

    async def _give_back(self, env: str, run: Run, error: BaseException) -> None:
        if isinstance(error, InDoubt | ClaimLost):
            self._doubt(env, run.live, Doubt(run, run.staging))
            return
        given_up = run.staging.context.identity.activation if run.staging is not None else 0
        await self._discard(run.live, run.staging)
        run.staging = None
        published = self.ledger.world.capsule(env).head.manifest
        for name, sealed in run.sealed.items():
            if sealed != published[name].sealed:  # a seal gives what was published last, or something new
                await quietly(name, "discard", self.resources[name].discard(sealed), self.settings.discard_s)
        run.sealed.clear()
        if await self._abort(env, run.live, error, run, given_up):
            await self._thaw(env, run, published=False)

    async def _unfound(self, env: str, live: Live, staging: Staging | None, error: BaseException) -> None:
        """Give back a founding or an activation: nothing served before it."""
        if isinstance(error, InDoubt | ClaimLost):
            self._doubt(env, live, Doubt(staging=staging))
            return
        with anyio.CancelScope(shield=True):
            await self._discard(live, staging)
            await self._abort(env, live, error, None, staging.context.identity.activation if staging is not None else 0)

    async def _abort(self, env: str, live: Live, error: BaseException, run: Run | None, activation: int) -> bool:
        """Journal the end of a transition that was begun; False when that is impossible: it stays frozen then."""
        if self.ledger.world.capsule(env).transition is None:
            return True
        abort = Abort(
            env=env,
            at=self.ledger.clock.now(),
            code=code_of(error),
            reason=str(error) or type(error).__name__,
            component=error.component if isinstance(error, ComponentFailed) else "",
            held=run.drain.held if run is not None else (),
            activation=activation,
        )
        try:
            await self.ledger.commit(abort, may_ride=True)
        except (JournalError, InDoubt) as unwritten:
            _logger.error("the abort of a transition of %s can't be journaled; it stays frozen: %s", env, unwritten)
            self._doubt(env, live, Doubt(run))
            return False
        return True

    def _doubt(self, env: str, live: Live, doubt: Doubt) -> None:
        """Frozen until it is settled: whoever waits for the thaw hears it now, and so does whoever comes."""
        live.doubt = doubt
        if live.context is not None:
            live.context.gate.end(lambda: self._why_frozen(env))

    def _why_frozen(self, env: str) -> StateforkError:
        return own_copy(self.fenced) if self.fenced is not None else InDoubt.of(env)

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
            self._doubt(env, run.live, Doubt(run))
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
            probed_ms=staged.probed_ms if staged is not None else {},
            timings_ms=timer.ms,
        )

    def _begin(self, env: str, op: Operation, source: Moment | None = None) -> Begin:
        return Begin(env=env, at=self.ledger.clock.now(), transition=self.ledger.name(env), op=op, source=source)

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
        live.activation = max(live.activation, self.lives.activation_before(env)) + 1
        identity = Identity(env=env, epoch=epoch, activation=live.activation)
        gate = Gate(
            identity,
            generation,
            self._ids,
            self.ledger.clock.monotonic,
            leases_max=self.settings.leases_max,
            waiting_max=self.settings.waiting_max,
        )
        self.conditioning.begin(gate, given=False)
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
        self.seating.watch(context.gate)
        context.gate.open(context.gate.generation)

    async def _close(self, context: Context) -> None:
        for name, branch in context.branches.items():
            self._branches.pop((name, branch.id), None)
        with self.seating.slots.emptied(context.identity.env):
            await close_context(self.contract, self.resources, context, deadline_s=self.settings.discard_s)

    async def _forget(self, env: str) -> None:
        """The environment is no more: what resources kept of it beside its branches goes too."""
        for name, resource in self.resources.items():
            if isinstance(resource, Keeper):
                await quietly(name, "forget", resource.forget(env), self.settings.discard_s)
