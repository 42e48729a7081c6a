"""I9: a failed or cancelled transition leaves the environment serving its old generation, and nothing staged behind.

In a journal that means: what was aborted is never heard of again (its name, its activation, its generation, or a whole
environment that was to be founded), and actions that the drain revoked end as *unknown*.
"""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Head, Heads
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = "create table aborted (transition text primary key, env text, op text, at int) without rowid;"
_ACTED = frozenset({kinds.ACTION_BEGUN, kinds.ACTION_ENDED})
_USES = frozenset({kinds.ACTIVATED, kinds.ACTION_BEGUN, kinds.INPUT, kinds.EVALUATED})


class Aborts(Checker):
    """Remembers every transition that was aborted."""

    invariant = "I9"
    rule = "nothing of an aborted transition is used; what was revoked is unknown"
    kinds = frozenset(
        {kinds.BEGUN, kinds.DRAINED, kinds.PUBLISHED, kinds.ABORTED, kinds.FORKED, kinds.ACTION_ENDED, *_USES}
    )

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        if row.kind in _ACTED and not (head.unfounded_at or head.aborted_at or head.given_up or head.revoked):
            return
        match row.kind:
            case kinds.BEGUN | kinds.DRAINED | kinds.PUBLISHED:
                yield from self._goes_on(row, head)
            case kinds.ABORTED:
                self.looked_at += 1
                yield from self._aborted(row, head)
            case kinds.FORKED:
                child = self.heads.of(row.text("child"))
                if child.unfounded_at:
                    yield f"{head.env} is told of {child.env}, whose founding was aborted at {child.unfounded_at}"
            case kinds.ACTION_ENDED:
                yield from self._ended(row, head)
            case _:
                yield from self._used(row, head)

    def _goes_on(self, row: Row, head: Head) -> Iterator[str]:
        name = row.text("transition")
        found = self._spill.execute("select env, op, at from aborted where transition = ?", (name,)).fetchone()
        if found is not None:
            doing = {kinds.BEGUN: "begins again", kinds.DRAINED: "is drained", kinds.PUBLISHED: "is published"}[
                row.kind
            ]
            yield f"{found[1]} {name} of {found[0]} {doing}, though it was aborted at position {found[2]}"

    def _aborted(self, row: Row, head: Head) -> Iterator[str]:
        name, op, staged = row.text("transition"), row.text("op"), row.number("activation", 0)
        if head.transition == name and op != head.op:
            yield f"{name} of {head.env} began as {head.op} (position {head.begun_at}) and was aborted as {op}"
        if staged and staged == head.activation:
            yield f"the abort of {op} {name} gives up activation {staged} of {head.env}, which serves"
        elif staged and staged <= head.last_activation:
            yield f"the abort of {op} {name} gives up activation {staged} of {head.env}, which was used before"
        self._spill.execute("insert or ignore into aborted values (?, ?, ?, ?)", (name, head.env, op, row.position))

    def _used(self, row: Row, head: Head) -> Iterator[str]:
        what = _what(row)
        if head.unfounded_at:
            yield f"{what} is of {head.env}, whose founding was aborted at position {head.unfounded_at}"
        if row.kind in (kinds.ACTIVATED, kinds.ACTION_BEGUN):
            activation = row.number("activation")
            if head.last_activation < activation <= head.given_up:
                yield (
                    f"{what} is on activation {activation} of {head.env}, which was staged for a transition that was "
                    f"aborted at position {head.aborted_at}"
                )
        if head.aborted_at and row.number("generation") == head.generation + 1 and not head.transition:
            yield (
                f"{what} is on generation {head.generation + 1} of {head.env}, whose transition was aborted at "
                f"position {head.aborted_at}; {head.generation} serves on"
            )

    def _ended(self, row: Row, head: Head) -> Iterator[str]:
        revoked_at = head.revoked.get(row.number("lease"))
        if revoked_at is None:
            return
        self.looked_at += 1
        if row.text("outcome") != "unknown":
            yield (
                f"action {row.number('number')} of {head.env} (lease {row.number('lease')}) was revoked at position "
                f"{revoked_at}, and is recorded as {row.text('outcome')} instead of unknown"
            )


def _what(row: Row) -> str:
    match row.kind:
        case kinds.ACTIVATED:
            return "a binding"
        case kinds.ACTION_BEGUN:
            return f"action {row.number('number')}"
        case kinds.EVALUATED:
            return f"an evaluation (lease {row.number('lease')})"
        case _:
            return f"{row.text('method')} {row.text('url')} (lease {row.number('lease')})"
