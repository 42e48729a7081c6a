"""Planted faults: journal, recovery, collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from statefork.engine import decisions as deciding
from statefork.engine import pruning
from statefork.engine import recovery as recovering
from statefork.engine import retention as retaining
from statefork.engine.capsule import Phase
from statefork.engine.collect import Sharing
from statefork.engine.commands import Command, Park, Prune
from statefork.engine.ledger import Ledger
from statefork.engine.turns import Turns
from statefork.engine.world import World
from statefork.journal.events import GenerationPublished, GenerationsPruned
from statefork.journal.log import ANY
from statefork.simulation.mutants.planting import changed, mutant


@mutant("lost-reply-is-failure", "I10", "I11", "I5", "state", within=100)
def _() -> Iterator[None]:
    """After an append without a reply the journal is not read back: it counts as failed."""

    async def kept(self: Ledger, *_: object) -> bool:
        return False

    with changed(Ledger, "_kept", kept):
        yield


@mutant("expectation-dropped", "I10", "I5", within=150)
def _() -> Iterator[None]:
    """Appends expect nothing of their stream: who wrote there first is not noticed."""

    def decided(self: Ledger, commands: Any) -> Any:
        return [msgspec.structs.replace(append, expected=ANY) for append in was(self, commands)]

    with changed(Ledger, "_decide", decided) as was:
        yield


@mutant("recovery-keeps-the-tail", "state", within=30)
def _() -> Iterator[None]:
    """An environment that was bound when its engine was killed counts as parked."""

    def settle(ledger: Ledger, capsule: Any) -> list[Command]:
        commands: list[Command] = was(ledger, capsule)
        if capsule.phase is Phase.SERVING:
            return [Park(env=capsule.env, at=ledger.clock.now())]
        return commands

    with changed(recovering, "_settle", settle) as was:
        yield


@mutant("lost-actions-unnamed", "audit", within=50)
def _() -> Iterator[None]:
    """A recovery does not say which actions are gone."""

    def decided(self: Ledger, commands: Any) -> Any:
        return [
            msgspec.structs.replace(append, events=tuple(map(_unnamed, append.events)))
            for append in was(self, commands)
        ]

    with changed(Ledger, "_decide", decided) as was:
        yield


def _unnamed(event: Any) -> Any:
    if isinstance(event, GenerationPublished) and event.lost_actions:
        return msgspec.structs.replace(event, lost_actions=())
    return event


@mutant("live-branch-collected", "I11", within=30)
def _() -> Iterator[None]:
    """A collection does not know what serves."""
    with changed(Turns, "handles", lambda self: iter(())):
        yield


@mutant("collection-beside-transitions", "I4", "I11", "errors", "state", within=200)
def _() -> Iterator[None]:
    """A collection does not wait for what is half made."""

    async def alone(self: Sharing) -> Any:
        yield

    with changed(Sharing, "alone", _context(alone)):
        yield


def _context(work: Any) -> Any:
    from contextlib import asynccontextmanager

    return asynccontextmanager(work)


@mutant("prune-removes-what-is-shared", "I11", "I4", "state", within=60)
def _() -> Iterator[None]:
    """What a pruned generation held is removed without asking whether others hold it too."""
    with changed(World, "unreached", lambda self, versions: set(versions)):
        yield


@mutant("prune-takes-marked", "I11", "audit", within=200)
def _() -> Iterator[None]:
    """A mark keeps nothing."""
    with (
        changed(retaining, "_may_go", lambda one: not (one.pruned or one.opaque)),
        changed(deciding, "_prune", lambda capsule, command: (_pruned(command),)),
    ):
        yield


def _pruned(command: Prune) -> GenerationsPruned:
    return GenerationsPruned(
        at=command.at, env=command.env, retention=command.retention, pruned=command.pruned, by=command.by
    )


@mutant("policy-is-forgotten", "I10", within=100)
def _() -> Iterator[None]:
    """What was chosen for an environment is journaled, and the contract holds all the same."""
    with changed(pruning, "retention_of", lambda _, contract: contract.retention):
        yield


@mutant("policy-lets-go-more", "audit", within=200)
def _() -> Iterator[None]:
    """A publish lets go what another retention would, whatever was chosen."""
    harder = retaining.Retention(last=1)

    def due(self: pruning.Pruning, env: str) -> tuple[Prune, ...]:
        capsule, wanted = self._ledger.world.capsule(env), self._ledger.world.wanted(env)
        return self.prune(capsule, harder, retaining.prunable(capsule, harder, wanted, coming=1), by="policy")

    with changed(pruning.Pruning, "due", due):
        yield


@mutant("retired-is-left", "I9", "slots", within=50)
def _() -> Iterator[None]:
    """What a retired environment had bound stays."""

    async def close(self: Turns, context: Any) -> None:
        if self.ledger.world.environments[context.identity.env].phase is not Phase.RETIRED:
            await was(self, context)

    with changed(Turns, "_close", close) as was:
        yield
