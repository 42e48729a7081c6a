"""I11: what the journal does not reach is an orphan and is collected; what it reaches never is.

What exists is not in the journal (see :mod:`statefork.replay.audit.reach` for that); what was removed is.
"""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.contracts import Contracts
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row

_KINDS = ("binding", "branch", "sealed")


class Orphans(Checker):
    """Collections remove no version that is reached, are counted, and are over before an opened engine serves."""

    invariant = "I11"
    rule = "only what the journal does not reach is collected, and before anything is served"
    kinds = frozenset({kinds.STARTED, kinds.CONTRACT, kinds.COLLECTED, kinds.RECOVERED, kinds.ACTIVATED})

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._contracts = Contracts()
        self._opening_at: dict[
            str, int
        ] = {}  # by place: where an engine started that has not yet said it has recovered
        self._collected: dict[str, int] = {}  # since then

    def look(self, row: Row) -> Iterator[str]:
        match row.kind:
            case kinds.STARTED:
                self._opening_at[row.place], self._collected[row.place] = row.position, 0
            case kinds.CONTRACT:
                self._contracts.register(row)
            case kinds.COLLECTED:
                self.looked_at += 1
                self._collected[row.place] = self._collected.get(row.place, 0) + 1
                yield from self._collect(row)
            case kinds.RECOVERED:
                self.looked_at += 1
                yield from self._recovered(row)
                self._opening_at.pop(row.place, None)
            case _:
                opening_at = self._opening_at.get(self.heads.of(row.text("env")).place)
                if opening_at is not None:
                    yield (
                        f"{row.text('env')} is bound (activation {row.number('activation')}) before the engine that "
                        f"started at position {opening_at} had collected what was left behind"
                    )

    def _collect(self, row: Row) -> Iterator[str]:
        resource, kind, name = row.text("resource"), row.text("kind"), row.text("name")
        known = self._contracts.adapters()
        if known and resource not in known:
            yield f"{kind} {name} of {resource} was collected: no contract knows that resource"
        if kind not in _KINDS:
            yield f"{name} of {resource} was collected as a {kind}, which is nothing that can be an orphan"
        if kind == "sealed":
            reached = self.heads.versions.find(self.heads.owner(row.place), resource, name)
            if reached is not None:
                yield f"{reached}, was collected as an orphan"

    def _recovered(self, row: Row) -> Iterator[str]:
        told = row.number("orphans", 0)
        opening_at, collected = self._opening_at.get(row.place), self._collected.get(row.place, 0)
        if opening_at is not None and told != collected:
            yield (
                f"the opening of {row.text('run')} says that it collected {told} orphans; "
                f"{collected} are on record since position {opening_at}"
            )
        for item in row.items("recovered"):
            env, generation = (item.get("env"), item.get("generation")) if isinstance(item, dict) else (None, None)
            if isinstance(env, str) and isinstance(generation, int) and self.heads.of(env).generation < generation:
                yield f"the opening of {row.text('run')} says that it recovered {env}@{generation}: not published"
