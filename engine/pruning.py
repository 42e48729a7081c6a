"""Letting generations go: saying so in the journal, and removing what they alone held.

The two are apart. Once the journal says that a generation is pruned, nothing begins on its content; what is under way
then, or reads it, is waited for before anything is removed. What could not be removed, or was still to be when an
engine ended, is an orphan like any other, and goes with the next collection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Literal

import anyio

from statefork.engine.capsule import Capsule
from statefork.engine.collect import GcReport, Sharing, remove
from statefork.engine.commands import Prune
from statefork.engine.contract import Contract
from statefork.engine.holding import retention_of
from statefork.engine.ledger import Ledger
from statefork.engine.ports import Resource
from statefork.engine.retention import Retention, prunable, pruned
from statefork.journal.errors import JournalError
from statefork.journal.values import Sealed

BATCH = 64
"""How many versions are awaited before those that may go are looked for: that holds transitions back for a moment."""

_logger = logging.getLogger(__name__)
_ENVIRONMENTS_PART = 16  # with many environments so many more: each has to be asked whether it needs a version


class Pruning:
    """What stays of each environment of one engine, and what is to be removed."""

    def __init__(
        self,
        ledger: Ledger,
        contract: Contract,
        resources: Mapping[str, Resource],
        sharing: Sharing,
        *,
        parallel_max: int,
    ) -> None:
        self._ledger = ledger
        self._contract = contract
        self._resources = resources
        self._sharing = sharing
        self._parallel_max = parallel_max
        self._going: dict[tuple[str, str], Sealed] = {}
        self._more = anyio.Event()

    def of(self, env: str) -> Retention:
        """What stays of an environment."""
        return retention_of(self._ledger.world.capsule(env), self._contract)

    def due(self, env: str) -> tuple[Prune, ...]:
        """What goes with the append that publishes the next generation of an environment."""
        capsule, retention = self._ledger.world.capsule(env), self.of(env)
        wanted = self._ledger.world.wanted(env)
        return self.prune(capsule, retention, prunable(capsule, retention, wanted, coming=1), by="policy")

    def prune(
        self, capsule: Capsule, retention: Retention, going: Iterable[int], *, by: Literal["policy", "command"]
    ) -> tuple[Prune, ...]:
        """The command that lets generations go; none where there are none. Only a commit makes it true."""
        numbers = tuple(going)
        if not numbers:
            return ()
        for number in numbers:
            for name, component in capsule.generations[number].manifest.items():
                self._going[name, component.sealed.version] = component.sealed
        if len(self._going) >= self._enough:
            self._more.set()
        gone = tuple(pruned(self._ledger.world, capsule, numbers))
        at = self._ledger.clock.now()
        return (Prune(env=capsule.env, at=at, retention=str(retention), pruned=gone, by=by),)

    @property
    def _enough(self) -> int:
        return max(BATCH, len(self._ledger.world.environments) // _ENVIRONMENTS_PART)

    async def run(self) -> None:
        """Remove what went, whenever there is enough of it. Never ends by itself."""
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            await self.tidy()

    async def tidy(self) -> None:
        """As ``sweep``; where the journal can't be asked it is left to the next time."""
        try:
            await self.sweep()
        except JournalError as error:
            _logger.warning("what pruned generations held is not removed yet: %s", error)

    async def sweep(self) -> GcReport:
        """Remove what only pruned generations held. Waits until nothing is under way, and holds new ones back.

        Raises JournalUnavailable while it is not known what the journal holds.
        """
        if not self._going:
            return GcReport()
        async with self._sharing.alone():
            await self._ledger.settle_engine()
            going, self._going = self._going, {}
            unreached = self._ledger.world.unreached(going)
            order = {name: place for place, name in enumerate(reversed(self._contract.order))}
            handles = sorted(
                (going[one] for one in unreached), key=lambda handle: (order[handle.resource], handle.version)
            )
            collected, failed = await remove(self._ledger, self._resources, handles, parallel_max=self._parallel_max)
        return GcReport(collected=tuple(collected), failed=tuple(failed), kept=len(going) - len(unreached))
