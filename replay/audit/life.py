"""I10, second half: the lifecycle that the events tell is one that an environment can have.

The table of what may follow what is written down here a second time, in words. Generations, epochs and the order of
transitions are I5's; this checker looks after the rest: binding, parking, draining, ending.
"""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Head
from statefork.replay.audit.rows import Row

_FOUNDING = frozenset({"create", "fork", "clone", "import"})
_UNDRAINED = _FOUNDING | {"recover"}


class Life(Checker):
    """Every lifecycle event may follow the one before it."""

    invariant = "I10"
    rule = "every lifecycle event may follow the one before"
    kinds = frozenset(
        {
            kinds.BEGUN, kinds.DRAINED, kinds.PUBLISHED, kinds.ACTIVATED, kinds.PARKED, kinds.RETIRED, kinds.RECOVERED,
            kinds.CHOSEN,
        }
    )  # fmt: skip

    def look(self, row: Row) -> Iterator[str]:
        self.looked_at += 1
        if row.kind == kinds.RECOVERED:
            for env, op in self.heads.begun_by(row.place).items():
                yield f"the opening of {row.text('run')} left {op} of {env} unsettled"
            return
        head = self.heads.of(row.text("env"))
        match row.kind:
            case kinds.BEGUN:
                yield from self._begun(row, head)
            case kinds.DRAINED:
                if head.drained_at:
                    yield f"{head.op} of {head.env} is drained again, after position {head.drained_at}"
                elif head.op in _UNDRAINED:
                    yield f"{head.op} of {head.env} is drained, though nothing of it could be under way"
            case kinds.PUBLISHED:
                if head.retired:
                    yield f"{row.text('op')} publishes in {head.env}, which ended at position {head.retired_at}"
            case kinds.ACTIVATED:
                yield from self._activated(row, head)
            case kinds.PARKED:
                yield from self._parked(head)
            case kinds.CHOSEN:
                yield from self._chosen(head)
            case _:
                yield from self._retired(head)

    def _begun(self, row: Row, head: Head) -> Iterator[str]:
        op = row.text("op")
        if op == "snapshot" and head.generation and not head.activation:
            yield f"snapshot of {head.env} begins, though it is parked on generation {head.generation}"
        if op in _FOUNDING and head.generation:
            yield f"{op} begins in {head.env}, which has generation {head.generation} already"
        elif op not in _FOUNDING and not head.generation:
            yield f"{op} begins in {head.env}, of which nothing is published"

    def _activated(self, row: Row, head: Head) -> Iterator[str]:
        number = row.number("activation")
        if head.retired:
            yield f"{head.env} is bound (activation {number}), though it ended at position {head.retired_at}"
        if head.transition:
            yield f"{head.env} is bound (activation {number}) while {head.op} is under way (position {head.begun_at})"
        if head.activation:
            yield f"{head.env} is bound (activation {number}), though activation {head.activation} serves"

    def _parked(self, head: Head) -> Iterator[str]:
        if not head.activation:
            yield f"{head.env} is parked on generation {head.generation}, though nothing of it was bound"
        if head.transition:
            yield f"{head.env} is parked while {head.op} is under way (position {head.begun_at})"

    def _chosen(self, head: Head) -> Iterator[str]:
        if head.retired:
            yield f"a policy is chosen for {head.env}, which ended at position {head.retired_at}"
        elif head.transition or not head.generation:
            what = f"while {head.op} is under way" if head.transition else "of which nothing is published"
            yield f"a policy is chosen for {head.env}, {what}"

    def _retired(self, head: Head) -> Iterator[str]:
        if head.retired:
            yield f"{head.env} ends again, after position {head.retired_at}"
        elif head.transition:
            yield f"{head.env} ends while {head.op} is under way (position {head.begun_at})"
