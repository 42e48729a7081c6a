"""I2: root leases are granted only on the published generation, never between freeze and publish."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.rows import Row


class Admission(Checker):
    """Actions begin on the published generation of a serving environment; nothing is recorded after the drain."""

    invariant = "I2"
    rule = "root leases only on the published generation, none while frozen"
    kinds = frozenset({kinds.ACTION_BEGUN, kinds.INPUT, kinds.EXCHANGED, kinds.EVALUATED})

    def look(self, row: Row) -> Iterator[str]:
        if row.kind == kinds.ACTION_BEGUN:
            self.looked_at += 1
            yield from self._begun(row)
        elif row.text("cause", "") != "binding":
            self.looked_at += 1
            head = self.heads.of(row.text("env"))
            what = "an evaluation" if row.kind == kinds.EVALUATED else f"{row.text('method')} {row.text('url')}"
            if head.importing:
                return
            if not head.generation:
                yield f"{what} was admitted to {head.env}, of which nothing is published"
            elif head.transition and head.drained_at:
                yield f"{what} of {head.env} was live after {head.op} had drained it (position {head.drained_at})"

    def _begun(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        if head.importing:
            return
        number, generation = row.number("number"), row.number("generation")
        if head.retired:
            yield f"action {number} began in {head.env}, which is retired"
        elif not head.generation:
            yield f"action {number} began in {head.env}, of which nothing is published"
        elif generation != head.generation:
            yield f"action {number} of {head.env} began on generation {generation}; published is {head.generation}"
        if head.transition:
            yield f"action {number} began in {head.env} while {head.op} had it frozen (since position {head.begun_at})"
