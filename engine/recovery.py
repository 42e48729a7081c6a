"""On open: what the last engine left unfinished is settled, and what it lost is named.

Nothing of a crashed engine is alive: its contexts died with it or are orphans. So a transition that was begun and not
published is aborted; an environment that was being founded never existed; and one that was serving gets a new
generation with the components of its last one, in a new epoch, whose event names the actions that are gone. It stays
parked until it is used. Recovery writes only what ``decide`` allows, so that running it twice changes nothing more.
"""

from __future__ import annotations

import anyio
import msgspec

from statefork.engine.capsule import Capsule, Phase
from statefork.engine.collect import GcReport
from statefork.engine.commands import Abort, Command, Recover, Retire
from statefork.engine.ledger import Ledger
from statefork.engine.staging import first_failure
from statefork.journal.values import Moment, Value


class RecoveryReport(Value, frozen=True, kw_only=True):
    """What opening found and did. ``lost``: for each recovered environment, the actions that are gone."""

    settled: tuple[str, ...] = ()  # transitions that were under way
    recovered: tuple[Moment, ...] = ()
    lost: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    collection: GcReport = GcReport()

    @property
    def orphans(self) -> int:
        """How many things were removed that nothing reached."""
        return len(self.collection.collected)

    @property
    def clean(self) -> bool:
        """Whether the engine before had closed in good order."""
        return not (self.settled or self.recovered or self.orphans)


async def recover(ledger: Ledger, *, parallel_max: int) -> RecoveryReport:
    """Settle every environment that was not at rest. Raises what ``Ledger.commit`` raises, as it is."""
    settled: list[str] = []
    recovered: list[Moment] = []
    lost: dict[str, tuple[int, ...]] = {}
    limiter = anyio.CapacityLimiter(parallel_max)

    async def one(capsule: Capsule, commands: list[Command]) -> None:
        async with limiter:
            await ledger.commit(*commands)
        after = ledger.world.environments.get(capsule.env)
        if after is not None and after.generation > capsule.generation:
            recovered.append(after.moment)
            lost[capsule.env] = after.head.lost_actions

    try:
        async with anyio.create_task_group() as tasks:
            for env in sorted(ledger.world.environments.awake):
                capsule = ledger.world.environments[env]
                commands = _settle(ledger, capsule)
                if capsule.transition is not None:
                    settled.append(capsule.transition.id)
                if commands:
                    tasks.start_soon(one, capsule, commands)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None
    return RecoveryReport(
        settled=tuple(settled), recovered=tuple(sorted(recovered, key=str)), lost=dict(sorted(lost.items()))
    )


def _settle(ledger: Ledger, capsule: Capsule) -> list[Command]:
    env, at = capsule.env, ledger.clock.now()
    commands: list[Command] = []
    if capsule.transition is not None:
        commands.append(Abort(env=env, at=at, code="crashed", reason="the engine ended while it was under way"))
    if capsule.phase is Phase.NEW:
        commands.append(Retire(env=env, at=at))
    elif capsule.bound or capsule.phase is Phase.RECOVERING:
        commands.append(Recover(env=env, at=at, transition=ledger.name(env)))
    return commands
