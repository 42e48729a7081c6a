"""The operations on environments: each a sequence of freeze → drain → stage → publish, or a part of it.

Before the publish append the old generation serves, after it the new one (I5). Whatever fails before it is given back
by :mod:`statefork.engine.turns`; whatever fails after it is left to the collector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext

import msgspec

from statefork.engine.aborted import add_facts, as_aborted
from statefork.engine.arriving import Arrivals
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.commands import Activate, Answer, Choose, Command, Found, Founding, Mark, NoteFork, Park, Retire
from statefork.engine.cut import take_cut
from statefork.engine.decisions import decide
from statefork.engine.keyed import Note
from statefork.engine.live import Live, Run, Timer
from statefork.engine.policy import AS_IT_IS, Choice
from statefork.engine.retention import Retention, prunable
from statefork.engine.settings import DrainPolicy
from statefork.engine.slots import UNLIMITED
from statefork.engine.staging import ComponentFailed, Context
from statefork.engine.turns import in_own_task
from statefork.journal.errors import StateforkError
from statefork.journal.events import Operation
from statefork.journal.values import Component, Moment, Pruned

# Nothing runs there but what a server still does after its response; and who comes meanwhile has done nothing to be
# refused for: the environment is bound again for it.
_GIVING_WAY = DrainPolicy(deadline_s=1.0, hold_s=math.inf)


class Conductor(Arrivals):
    """Every transition of every environment of one contract."""

    @in_own_task
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
        note: Note | None = None,
        helps: str = "",
        choice: Choice = AS_IT_IS,
    ) -> Moment:
        """A new environment whose first generation has these components. ``origin`` None: it is its own origin.

        ``helps``: what it is there for, until it is retired, at the latest by the next opening. ``choice``: policies.
        Forks and clones name their ``source``. Raises EnvironmentExists, TransitionAborted: the name stays free then.
        """
        now, first = self.ledger.clock.now, Moment(env=env, generation=1)
        command = Found(
            env=env,
            at=now(),
            transition=self.ledger.name(env),
            contract=self.contract.digest,
            how=how,
            origin=origin or first,
            source=source,
            inherited_actions=actions,
            place=self.ledger.place,
            helps=helps,
        )
        await self._check_free(command, waits=activate and self.seating.slots.limit != UNLIMITED)
        with self.lives.held(env) as live:
            async with self.seating.claim(env) if activate else nullcontext(), live.lock, self.sharing.shared():
                await self._check_may_begin(env, live, source)
                begun = msgspec.structs.replace(command, at=now(), transition=self.ledger.name(env))
                await self._begun(live, begun)
                timer = Timer(self.ledger.clock.monotonic)
                staging = self._staging(live, env, 1, 1, manifest, timer) if activate else None
                try:
                    staged = await self._stage(staging) if staging is not None else None
                    publish = self._publish(env, manifest, timer, staged=staged, source_actions=actions)
                    commands: list[Command] = [publish]
                    if source is not None and how != "create":
                        forked = NoteFork(env=source.env, at=now(), generation=source.generation, child=env, how=how)
                        commands.append(forked)
                    await self.ledger.commit(*commands, *self._chosen(env, choice), *self._noted(env, note))
                except BaseException as error:
                    await self._unfound(env, live, staging, error)
                    if not live.doubt:
                        await self._forget(env)
                    if isinstance(error, ComponentFailed):
                        raise as_aborted(error, env, how, 0, source) from error.cause
                    add_facts(error, env, how, 0, source)
                    raise
                if staged is not None:
                    self._serve(live, staged)
        assert self.ledger.world.capsule(env).generation == 1
        return first

    async def _check_may_begin(self, env: str, live: Live, source: Moment | None) -> None:
        """Again: while this waited, the engine may have begun to close, and the source may have been pruned."""
        self._check_open()
        if source is not None:
            self.ledger.world.kept(source)
        if live.doubt:
            await self._settle(env, live)

    async def _check_free(self, command: Found, *, waits: bool) -> None:
        """Raise EnvironmentExists for a name that is taken: nobody waits for a slot to hear that.

        Whether another engine that shares the journal has it is asked only where it may have changed, or where there
        may be a wait; else the append finds out.
        """
        world = self.ledger.world
        if waits or command.env in world.elsewhere.names:
            await self.ledger.look_up(command.env)
        known = world.environments.get(command.env)
        if known is not None and known.generations:
            decide(known, command)
        world.elsewhere.check_free(command.env)

    @in_own_task
    async def snapshot(
        self, env: str, drain: DrainPolicy | None = None, *, note: Note | None = None, to_fork: bool = False
    ) -> Moment:
        """Publish the present, continuing: epoch, activation and bindings stay. A parked environment is its head.

        ``to_fork``: a child that continues from it will be bound next.
        """
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                if note is not None:
                    await self.ledger.commit(*self._noted(env, note))
                return capsule.moment
            async with self._frozen(live, self._begin(env, "snapshot"), hold_s=self._hold_s(drain)) as run:
                await self._drain(run, drain, may_fence=False)
                manifest = await self._cut(run, to_fork=to_fork)
                publish = self._publish(env, manifest, run.timer, run=run)
                await self.ledger.commit(publish, *self._noted(env, note), *self.pruning.due(env))
            await self._thaw(env, run)
            return self.ledger.world.capsule(env).moment

    @in_own_task
    async def keep_up(self, env: str, drain: DrainPolicy, *, only_changed: bool) -> Moment:
        """As ``snapshot``, and with ``only_changed`` nothing is published where nothing was written.

        Its freeze is not journaled by itself: one append holds all of it.
        """
        async with self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                return capsule.moment
            async with self._frozen(
                live, self._begin(env, "snapshot"), quiet="snapshot", hold_s=self._hold_s(drain)
            ) as run:
                await self._drain(run, drain, may_fence=False)
                manifest = await self._cut(run)
                wanted = not only_changed or manifest != capsule.head.manifest
                if wanted:
                    publish = self._publish(env, manifest, run.timer, run=run)
                    await self.ledger.commit(run.begin, publish, *self.pruning.due(env))
            await self._thaw(env, run, published=wanted)
            return self.ledger.world.capsule(env).moment

    @in_own_task
    async def switch(
        self, env: str, op: Operation, source: Moment, drain: DrainPolicy | None = None, *, note: Note | None = None
    ) -> Moment:
        """Publish the components of ``source`` as the next generation, in a new epoch (reset, restore)."""
        async with self._turn(env) as live:
            capsule = self.usable(env)
            origin = self.ledger.world.kept(source)
            if capsule.phase is Phase.PARKED:
                begin = self._begin(env, op, source)
                timer = Timer(self.ledger.clock.monotonic)
                publish = self._publish(env, origin.manifest, timer, source_actions=origin.actions)
                await self.ledger.commit(begin, publish, *self._noted(env, note), *self.pruning.due(env))
                return self.ledger.world.capsule(env).moment
            async with self.seating.slots.staging_place():
                async with self._frozen(live, self._begin(env, op, source), hold_s=self._hold_s(drain)) as run:
                    await self._drain(run, drain, may_fence=True)
                    generation = capsule.generation + 1
                    run.staging = self._staging(live, env, generation, generation, origin.manifest, run.timer)
                    staged = await self._stage(run.staging)
                    await self.ledger.commit(
                        self._publish(
                            env, origin.manifest, run.timer, run=run, staged=staged, source_actions=origin.actions
                        ),
                        *self._noted(env, note),
                        *self.pruning.due(env),
                    )
                self._serve(live, staged)
                await self._close(run.context)
            return self.ledger.world.capsule(env).moment

    @in_own_task
    async def park(
        self,
        env: str,
        reason: str = "",
        drain: DrainPolicy | None = None,
        *,
        only_idle: bool = False,
        at_end: bool = False,
    ) -> None:
        """Seal the tail, publishing it if it is dirty, and unbind. A parked environment stays parked.

        With ``only_idle`` one in which something runs is left alone. ``at_end``: it is the engine that closes.
        """
        async with self._turn(env, at_end=at_end) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.PARKED:
                return
            if only_idle and live.context is not None and live.context.gate.live:
                return
            if live.context is not None and self.died(live.context):
                await self._give_up_tail(env, live)  # there is no tail to seal any more
                return
            async with self._frozen(
                live, self._begin(env, "snapshot"), quiet="park", hold_s=self._hold_s(drain)
            ) as run:
                await self._drain(run, drain, may_fence=False)
                manifest = await self._cut(run)
                capsule = self.ledger.world.capsule(env)
                commands: list[Command] = [Park(env=env, at=self.ledger.clock.now(), reason=reason)]
                if manifest != capsule.head.manifest or capsule.actions != capsule.head.actions:
                    publish = self._publish(env, manifest, run.timer, run=run)
                    commands = [run.begin, publish, *commands, *self.pruning.due(env)]
                await self.ledger.commit(*commands)
            live.context = None
            await self._close(run.context)

    @in_own_task
    async def prune(self, env: str, retention: Retention, *, only_say: bool = False) -> tuple[Pruned, ...]:
        """Let the generations of an environment go that need not stay; ``only_say``: which those would be."""
        async with self._turn(env):
            capsule = self.usable(env)
            going = prunable(capsule, retention, self.ledger.world.wanted(env))
            commands = self.pruning.prune(capsule, retention, going, by="command")
            if commands and not only_say:
                await self.ledger.commit(*commands)
            return commands[0].pruned if commands else ()

    @in_own_task
    async def done(self, key: str, env: str) -> None:
        """The answer of a whole command whose parts have theirs."""
        async with self._turn(env):
            at, known = self.ledger.clock.now(), self.ledger.world.answers[key]
            await self.ledger.commit(Answer(env=env, at=at, key=key, request=known.request))

    @in_own_task
    async def mark(self, moment: Moment, text: str) -> None:
        """Give a generation a mark, which keeps it; an empty one takes it away. Raises UnknownRef."""
        async with self._turn(moment.env):
            self.usable(moment.env)
            at = self.ledger.clock.now()
            await self.ledger.commit(Mark(env=moment.env, at=at, generation=moment.generation, mark=text))

    @in_own_task
    async def choose(self, env: str, choice: Choice, *, note: Note | None = None) -> None:
        """When snapshots of an environment are taken by themselves and which generations stay, from here on."""
        async with self._turn(env):
            commands = (*self._chosen(env, choice, self.usable(env)), *self._noted(env, note))
            if commands:
                await self.ledger.commit(*commands)

    def _chosen(self, env: str, choice: Choice, capsule: Capsule | None = None) -> tuple[Command, ...]:
        """What chooses it; nothing where it holds already."""
        command = Choose(env=env, at=self.ledger.clock.now(), choice=choice)
        return (command,) if choice and (capsule is None or decide(capsule, command)) else ()

    async def _cut(self, run: Run, *, to_fork: bool = False) -> dict[str, Component]:
        return await take_cut(
            self.contract, self.resources, run, deadline_s=self.settings.seal_s, keep=self.keep, to_fork=to_fork
        )

    async def give_way(self, env: str) -> str:
        try:
            await self.park(env, "its slot was needed", _GIVING_WAY, only_idle=True)
        except StateforkError as error:
            return error.message
        return ""

    def _noted(self, env: str, note: Note | None) -> tuple[Command, ...]:
        """What a command with a key adds to the append of its effect."""
        return () if note is None else (note.answer(env, self.ledger.clock.now()),)

    def _hold_s(self, drain: DrainPolicy | None) -> float:
        return (drain or self.settings.drain).hold_s

    def needs_slot(self, env: str) -> bool:
        """Whether the environment could be bound but is not. Raises UnknownEnvironment."""
        return self.usable(env).phase is not Phase.RETIRED and not self.seating.is_bound(env)

    @in_own_task
    async def activate(self, env: str) -> None:
        """Bind and probe a parked environment, once it has a slot. Does nothing where it serves already."""
        while not await self._activated(env, claimed=self.needs_slot(env)):
            pass  # it gave its slot away while this waited for its turn

    async def _activated(self, env: str, *, claimed: bool) -> bool:
        """Whether it is done; not so where no slot was claimed, for the environment had one, and it has none now."""
        async with self.seating.claim(env) if claimed else nullcontext(), self._turn(env) as live:
            capsule = self.usable(env)
            if capsule.phase is Phase.SERVING:
                return True
            if not claimed and self.needs_slot(env):
                return False
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
                        probed_ms=staged.probed_ms,
                    )
                )
            except BaseException as error:
                await self._unfound(env, live, staging, error)
                if isinstance(error, ComponentFailed):
                    raise as_aborted(error, env, "activate", capsule.generation) from error.cause
                add_facts(error, env, "activate", capsule.generation)
                raise
            self._serve(live, staged)
            return True

    @in_own_task
    async def retire(self, env: str, drain: DrainPolicy | None = None, *, note: Note | None = None) -> None:
        """End the environment. Its history stays."""
        async with self._turn(env) as live:
            commands = (Retire(env=env, at=self.ledger.clock.now()), *self._noted(env, note))
            if live.context is None:
                await self.ledger.commit(*commands)
            else:
                async with self._frozen(live, self._begin(env, "snapshot"), quiet="retire") as run:
                    await self._drain(run, drain or self.settings.drain_at_end, may_fence=True)
                    await self.ledger.commit(*commands)
                live.context = None
                await self._close(run.context)
            await self._forget(env)

    @in_own_task
    async def recover(self, env: str, context: Context | None = None) -> Moment:
        """Give up the tail of an environment whose runtime died: the last published components, in a new epoch.

        With ``context`` only if that is still the one that serves: who comes second finds the work done. What was only
        frozen in doubt serves again once that is settled, and its tail is kept.
        """
        doubted = self.live(env).doubt
        async with self._turn(env) as live:
            settled = doubted and live.context is not None and not self.died(live.context)
            wanted = not settled and (context is None or live.context is context)
            if wanted and self.usable(env).phase is not Phase.PARKED:
                await self._give_up_tail(env, live)
            return self.ledger.world.capsule(env).moment

    async def _give_up_tail(self, env: str, live: Live) -> None:
        async with self._frozen(live, self._begin(env, "snapshot"), quiet="recover") as run:
            await self._drain(run, self.settings.drain_at_end, may_fence=True)
            await self.ledger.commit(self._recover(env))
        live.context = None
        await self._close(run.context)

    def died(self, context: Context) -> str:
        """Why the context is of no use any more: something that it needs will never answer again, or can't be ended.

        Empty while all of it lives.
        """
        if context.gate.abandoned:
            return f"{context.gate.abandoned}: it can't be ended"
        for name, resource in self._mortals.items():
            if name in context.bindings and (why := resource.died(context.bindings[name])):
                return f"{name}: {why}"
        return ""
