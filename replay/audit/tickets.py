"""I7: a ticket of another environment, epoch or activation is refused, with an error that names both."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.rows import Row

_STALE = "stale_generation"


class Tickets(Checker):
    """Whatever was admitted bears the present epoch and activation; whatever was refused as stale does not."""

    invariant = "I7"
    rule = "only tickets of the present epoch and activation are accepted"
    kinds = frozenset(
        {kinds.ACTION_BEGUN, kinds.INPUT, kinds.EXCHANGED, kinds.EVALUATED, kinds.ACTIVATED, kinds.REFUSED}
    )

    def look(self, row: Row) -> Iterator[str]:
        match row.kind:
            case kinds.ACTION_BEGUN | kinds.INPUT | kinds.EXCHANGED | kinds.EVALUATED:
                self.looked_at += 1
                yield from self._accepted(row)
            case kinds.ACTIVATED:
                self.looked_at += 1
                yield from self._activated(row)
            case kinds.REFUSED:
                self.looked_at += 1
                yield from self._refused(row)
            case _:
                pass

    def _accepted(self, row: Row) -> Iterator[str]:
        env = row.text("env")
        head = self.heads.of(env)
        what = row.kind.split(".")[0]
        if row.stream != f"act/{env}":
            yield f"an {what} of {env} is recorded in the stream {row.stream}: it was taken for another environment's"
        if head.importing or row.text("cause", "") == "binding":  # of an epoch that may still have to begin
            return
        epoch = row.number("epoch")
        if epoch != head.epoch:
            yield f"an {what} of {env} with epoch {epoch} was accepted, while its epoch is {head.epoch}"
        if row.kind == kinds.ACTION_BEGUN:
            activation = row.number("activation")
            if not head.activation:
                yield f"action {row.number('number')} of {env} was accepted on activation {activation}; it is parked"
            elif activation != head.activation:
                yield (
                    f"action {row.number('number')} of {env} was accepted on activation {activation}, "
                    f"while its activation is {head.activation}"
                )

    def _activated(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        activation, generation = row.number("activation"), row.number("generation")
        if activation <= head.last_activation:
            yield f"activation {activation} of {head.env} was given before: old tickets for it would open again"
        if generation != head.generation:
            yield f"{head.env} was activated with generation {generation}, while {head.generation} is published"

    def _refused(self, row: Row) -> Iterator[str]:
        status, detail = row.number("status"), row.text("detail", "")
        if status < 400:
            yield f"a request counted as refused got status {status}"
        if row.text("code") == _STALE:
            epoch = row.number("epoch")
            if epoch and str(epoch) not in detail:
                yield f"a stale request was refused without naming its epoch {epoch}: {detail!r}"
