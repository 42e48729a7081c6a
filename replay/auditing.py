"""The audit as people run it: the independent checkers, and the engine's own fold as one more thing under examination.

:mod:`statefork.replay.audit` imports nothing of the engine. Here what the engine's fold makes of each environment is
compared with what the audit's own account made of it from the raw rows (I10): the one place where the two meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from statefork.engine.capsule import Capsule, evolve
from statefork.engine.transitions import Phase
from statefork.journal.codec import Codec
from statefork.journal.errors import StateforkError
from statefork.replay import audit as independent
from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.follow import follow as follow_independently
from statefork.replay.audit.heads import Head, Heads
from statefork.replay.audit.report import Finding, Report
from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import Progress
from statefork.replay.audit.spill import Kept

__all__ = ["EngineFold", "audit", "follow"]


def audit(
    state: str | Path,
    *,
    stores: bool = True,
    world: bool = False,
    journal: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the journal of a state directory, and what it refers to, against every rule that never bends.

    An engine may be running: the audit looks at one consistent moment and changes nothing. With ``stores``, blobs and
    sealed versions must be there. With ``world``, too, everything else that lies in the state directory is looked at:
    sealed bytes must be what was sealed, branches belong to one environment each, and whatever the journal does not
    reach is named. ``journal`` is the journal's address, where it is in a database. Never raises for what it finds:
    what can't be read is in the report.
    """
    return independent.audit(state, stores=stores, world=world, journal=journal, progress=progress, more=(EngineFold,))


def follow(
    state: str | Path,
    *,
    told: Callable[[Finding | str], None],
    idle: Callable[[], bool],
    looked: Callable[[int, int], bool],
    stores: bool = True,
    journal: str | None = None,
) -> Report:
    """The same as the journal grows: see :func:`statefork.replay.audit.follow.follow`."""
    return follow_independently(
        state, told=told, idle=idle, looked=looked, stores=stores, journal=journal, more=(EngineFold,)
    )


class EngineFold(Checker):
    """Folds as the engine does, keeping of each environment its present only."""

    invariant = "I10"
    rule = "the engine's fold is what the rows say"
    kinds = frozenset(
        {
            kinds.CREATED, kinds.BEGUN, kinds.DRAINED, kinds.PUBLISHED, kinds.ABORTED, kinds.FORKED, kinds.ACTIVATED,
            kinds.PARKED, kinds.RETIRED, kinds.ANSWERED, kinds.ACTION_BEGUN, kinds.IMPORTED, kinds.PRUNED, kinds.MARKED,
            kinds.CHOSEN,
        }
    )  # fmt: skip

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._codec = Codec()
        self._capsules: Kept[Capsule] = Kept()
        self._lost: set[str] = set()  # environments whose fold broke: one finding each is enough

    def close(self) -> None:
        self._capsules.close()

    def look(self, row: Row) -> Iterator[str]:
        env = row.text("env")
        if env in self._lost:
            return
        self.looked_at += 1
        try:
            before = self._capsules.get(env)
            after = evolve(before, self._codec.decode(row.raw, position=row.position))
        except StateforkError as error:
            self._lost.add(env)
            yield f"the engine's fold of {env} breaks here: {error.message}"
            return
        if after is None:
            self._capsules.drop(env)
        elif after is not before:
            present = {number: kept for number, kept in after.generations.items() if number == after.generation}
            self._capsules.put(env, replace(after, generations=present, children=()))

    def finish(self) -> Iterator[str]:
        for head in self.heads:
            if head.env not in self._lost:
                yield from _compare(head, self._capsules.get(head.env))


def _compare(head: Head, capsule: Capsule | None) -> Iterator[str]:
    if capsule is None:
        if head.created_at:
            yield f"the engine's fold knows no {head.env}, the rows do"
        return
    transition = capsule.transition.id if capsule.transition else ""
    retired = capsule.phase is Phase.RETIRED
    for what, folded, told in (
        ("generation", capsule.generation, head.generation),
        ("epoch", capsule.epoch, head.epoch),
        ("transition", transition, head.transition),
        ("retired", retired, head.retired),
    ):
        if folded != told:
            yield f"{what} of {head.env} is {folded!r} by the engine's fold, {told!r} by the rows"
