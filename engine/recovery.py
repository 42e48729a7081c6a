"""On open: what the last engine left unfinished is settled, and what it lost is named.

Nothing of a crashed engine is alive: its contexts died with it or are orphans. So a transition that was begun and not
published is aborted; an environment that was being founded never existed; and one that was serving gets a new
generation with the components of its last one, in a new epoch, whose event names the actions that are gone. It stays
parked until it is used. One that was of use to a command alone, which ended with the engine, is retired. Recovery
writes only what ``decide`` allows, so that running it twice changes nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import anyio

from statefork.engine.capsule import Capsule, Phase, Transition
from statefork.engine.collect import Counted, GcReport, nobody_counts
from statefork.engine.commands import Abort, Command, Recover, Retire
from statefork.engine.ledger import Ledger
from statefork.engine.staging import first_failure
from statefork.journal.values import Moment, Value

NAMED_MAX = 20
"""Orphans that a report names; of more it says how many."""


class Settled(Value, frozen=True, kw_only=True):
    """A transition that was under way when the engine ended, and what became of it."""

    env: str
    transition: str
    op: str
    generation: int  # the one that stays; 0: the environment never came into being, and its name is free
    phase: str  # in which it was found

    def __str__(self) -> str:
        if self.generation:
            return f"{self.op} of {self.env} was aborted: generation {self.generation} stays"
        return f"{self.op} of {self.env} was given up: it never came into being, and its name is free"


class Recovered(Value, frozen=True, kw_only=True):
    """An environment whose tail is gone: a new generation has the components of the last one that was published."""

    moment: Moment
    source: Moment
    lost: tuple[int, ...] = ()  # numbers of the actions that are in no generation

    def __str__(self) -> str:
        lost = "no action is lost"
        if self.lost:
            lost = f"lost action{'s' if len(self.lost) > 1 else ''} {', '.join(map(str, self.lost))}"
        return f"{self.moment} was recovered from {self.source}: {lost}"


class Released(Value, frozen=True, kw_only=True):
    """An environment that was of use to one command alone, which ended with its engine: it is retired."""

    env: str
    helped: str

    def __str__(self) -> str:
        return f"{self.env} was there for {self.helped}, and what wanted that is gone: it is retired"


class RecoveryReport(Value, frozen=True, kw_only=True):
    """What opening found and did. ``str`` of its parts, and ``lines``, say it to people."""

    transitions: tuple[Settled, ...] = ()
    environments: tuple[Recovered, ...] = ()
    unfounded: tuple[str, ...] = ()  # environments that were named and never begun: they are retired
    released: tuple[Released, ...] = ()
    collection: GcReport = GcReport()
    elapsed_ms: float = 0.0

    @property
    def settled(self) -> tuple[str, ...]:
        """The names of the transitions that were under way."""
        return tuple(one.transition for one in self.transitions)

    @property
    def recovered(self) -> tuple[Moment, ...]:
        """The generations that recovery published."""
        return tuple(one.moment for one in self.environments)

    @property
    def lost(self) -> dict[str, tuple[int, ...]]:
        """For each recovered environment, the actions that are gone."""
        return {one.moment.env: one.lost for one in self.environments}

    @property
    def orphans(self) -> int:
        """How many things were removed that nothing reached."""
        return len(self.collection.collected)

    @property
    def orphan_kinds(self) -> dict[str, int]:
        """The same by kind: ``{"branch": 3, "sealed": 1}``."""
        return dict(sorted(Counter(one.kind for one in self.collection.collected).items()))

    @property
    def clean(self) -> bool:
        """Whether there was nothing to do: the engine before had closed in good order."""
        settled = self.transitions or self.environments or self.unfounded or self.released
        return not (settled or self.orphans or self.collection.failed)

    def lines(self) -> Iterator[str]:
        """What was found and done, a sentence each."""
        if self.clean:
            yield "nothing to recover"
            return
        yield f"recovered in {self.elapsed_ms:.0f} ms what the engine before had left:"
        yield from map(str, self.transitions)
        yield from map(str, self.environments)
        for env in self.unfounded:
            yield f"{env} was only named, and is retired"
        yield from map(str, self.released)
        removed = self.collection.collected
        for orphan in removed[:NAMED_MAX]:
            yield f"removed {orphan.kind} {orphan.name} of {orphan.resource}, which nothing reached"
        if len(removed) > NAMED_MAX:
            yield f"removed {len(removed) - NAMED_MAX} more that nothing reached"
        for orphan in self.collection.failed:
            what = f"{orphan.kind} {orphan.name} of {orphan.resource}"
            yield f"could not remove {what} (statefork gc tries again): {orphan.error}"


async def recover(ledger: Ledger, *, parallel_max: int, count: Counted = nobody_counts) -> RecoveryReport:
    """Settle every environment that was not at rest. Raises what ``Ledger.commit`` raises, as it is.

    ``count`` is called with how many are settled, and of how many.
    """
    transitions: list[Settled] = []
    environments: list[Recovered] = []
    unfounded: list[str] = []
    released: list[Released] = []
    limiter = anyio.CapacityLimiter(parallel_max)
    awake = sorted(ledger.world.environments.awake)
    done = 0

    async def one(capsule: Capsule, commands: list[Command]) -> None:
        nonlocal done
        async with limiter:
            await ledger.commit(*commands)
        done += 1
        count(done, len(awake))
        after = ledger.world.environments.get(capsule.env)
        if after is not None and after.generation > capsule.generation:
            found = Recovered(moment=after.moment, source=capsule.moment, lost=after.head.lost_actions)
            environments.append(found)

    try:
        async with anyio.create_task_group() as tasks:
            for env in awake:
                capsule = ledger.world.environments[env]
                commands = _settle(ledger, capsule)
                if capsule.transition is not None:
                    transitions.append(_found(capsule, capsule.transition))
                elif capsule.phase is Phase.NEW:
                    unfounded.append(env)
                if capsule.helps and capsule.generations:
                    released.append(Released(env=env, helped=capsule.helps))
                if commands:
                    tasks.start_soon(one, capsule, commands)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None
    return RecoveryReport(
        transitions=tuple(transitions),
        environments=tuple(sorted(environments, key=lambda one: one.moment.env)),
        unfounded=tuple(unfounded),
        released=tuple(released),
    )


def _found(capsule: Capsule, under_way: Transition) -> Settled:
    return Settled(
        env=capsule.env,
        transition=under_way.id,
        op=under_way.op,
        generation=capsule.generation,
        phase=capsule.phase.value,
    )


def _settle(ledger: Ledger, capsule: Capsule) -> list[Command]:
    env, at = capsule.env, ledger.clock.now()
    commands: list[Command] = []
    if capsule.transition is not None:
        commands.append(Abort(env=env, at=at, code="crashed", reason="the engine ended while it was under way"))
    if capsule.phase is Phase.NEW or (capsule.helps and capsule.generations):
        commands.append(Retire(env=env, at=at))
    elif capsule.bound or capsule.phase is Phase.RECOVERING:
        commands.append(Recover(env=env, at=at, transition=ledger.name(env)))
    return commands
