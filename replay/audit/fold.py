"""I10, second half: the engine's fold of the journal says what the audit's own account says.

Here the engine's fold is not a tool but the thing under examination: what it makes of each environment is compared with
what :mod:`statefork.replay.audit.heads` made of it from the raw rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from statefork.engine.capsule import Capsule, evolve
from statefork.engine.transitions import Phase
from statefork.journal.codec import Codec
from statefork.journal.errors import StateforkError
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Head, Heads
from statefork.replay.audit.rows import Row


class Fold(Checker):
    """Folds as the engine does, keeping of each environment its present only."""

    invariant = "I10"
    rule = "the engine's fold is what the rows say"

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._codec = Codec()
        self._capsules: dict[str, Capsule] = {}
        self._lost: set[str] = set()  # environments whose fold broke: one finding each is enough

    def look(self, row: Row) -> Iterator[str]:
        if not row.stream.startswith(("env/", "act/")):
            return
        env = row.text("env")
        if env in self._lost:
            return
        self.looked_at += 1
        try:
            after = evolve(self._capsules.get(env), self._codec.decode(row.raw, position=row.position))
        except StateforkError as error:
            self._lost.add(env)
            yield f"the engine's fold of {env} breaks here: {error.message}"
            return
        if after is None:
            self._capsules.pop(env, None)
        else:
            present = {number: kept for number, kept in after.generations.items() if number == after.generation}
            self._capsules[env] = replace(after, generations=present, children=())

    def finish(self) -> Iterator[str]:
        for head in self.heads:
            capsule = self._capsules.get(head.env)
            if head.env not in self._lost:
                yield from _compare(head, capsule)


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
