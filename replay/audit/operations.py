"""I1: an action, a request and an evaluation see one generation, whole."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.rows import Row


class Operations(Checker):
    """An operation ends on the generation it began on, and no lease is seen on two generations."""

    invariant = "I1"
    rule = "one generation per operation"
    kinds = frozenset({kinds.ACTION_BEGUN, kinds.ACTION_ENDED, kinds.INPUT, kinds.EXCHANGED, kinds.EVALUATED})

    def look(self, row: Row) -> Iterator[str]:
        self.looked_at += 1
        match row.kind:
            case kinds.ACTION_BEGUN:
                yield from self._begun(row)
            case kinds.ACTION_ENDED:
                yield from self._ended(row)
            case _:
                yield from self._recorded(row)

    def _lease(self, row: Row) -> Iterator[str]:
        env, lease = row.text("env"), row.number("lease")
        if self.heads.of(env).importing:
            if lease:
                yield f"lease {lease} of another journal is told as one of {env}"
        elif lease <= self.heads.of(env).lease_published:
            yield (
                f"lease {lease} of {env} is used on generation {row.number('generation')}, though it was granted "
                f"before that generation was published"
            )

    def _begun(self, row: Row) -> Iterator[str]:
        env, number = row.text("env"), row.number("number")
        head = self.heads.of(env)
        under_way = head.actions.get(number)
        if under_way is not None and under_way.run == head.run:
            yield f"action {number} of {env} begins, though it is under way since position {under_way.at}"
        yield from self._lease(row)

    def _ended(self, row: Row) -> Iterator[str]:
        env, number = row.text("env"), row.number("number")
        head = self.heads.of(env)
        begun = head.actions.get(number)
        if begun is None or begun.run != head.run:
            yield f"action {number} of {env} ends, but no such action is under way on generation {head.generation}"
            return
        ended = {name: row.number(name) for name in ("lease", "generation", "epoch", "activation")}
        differ = [
            f"{name} {getattr(begun, name)} became {now}" for name, now in ended.items() if getattr(begun, name) != now
        ]
        if differ:
            yield f"action {number} of {env} did not end where it began (position {begun.at}): {', '.join(differ)}"

    def _recorded(self, row: Row) -> Iterator[str]:
        env, generation = row.text("env"), row.number("generation")
        published = self.heads.of(env).generation
        if row.kind == kinds.EXCHANGED and row.text("cause", "") == "binding":  # of what is published next, maybe
            if generation not in (published, published + 1):
                yield f"a page of {env}@{generation} asked {row.text('url')}, while {published} is published"
            return
        if generation != published and not self.heads.of(env).importing:
            what = "an evaluation" if row.kind == kinds.EVALUATED else f"the request {row.text('url')}"
            yield f"{what} of {env} is of generation {generation}, while {published} is published"
        yield from self._lease(row)
