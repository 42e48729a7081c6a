"""I1: an action, a request and an evaluation see one generation, whole."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row


class Operations(Checker):
    """An operation ends on the generation it began on, and no lease is seen on two generations."""

    invariant = "I1"
    rule = "one generation per operation"

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._leases: dict[str, tuple[int, int]] = {}  # env -> (highest lease so far, highest at the last publish)
        self._identities: dict[str, dict[int, tuple[int, int, int, int]]] = {}  # env -> live number -> whose it is

    def look(self, row: Row) -> Iterator[str]:
        match row.kind:
            case kinds.STARTED:
                self._leases.clear()  # leases are counted anew in each run of an engine
                self._identities.clear()
            case kinds.PUBLISHED:
                env = row.text("env")
                highest, _ = self._leases.get(env, (0, 0))
                self._leases[env] = (highest, highest)
                self._identities.pop(env, None)
            case kinds.ACTION_BEGUN:
                self.looked_at += 1
                yield from self._begun(row)
            case kinds.ACTION_ENDED:
                self.looked_at += 1
                yield from self._ended(row)
            case kinds.INPUT | kinds.EVALUATED:
                self.looked_at += 1
                yield from self._recorded(row)
            case _:
                pass

    def _lease(self, row: Row) -> Iterator[str]:
        env, lease = row.text("env"), row.number("lease")
        highest, before = self._leases.get(env, (0, 0))
        if lease <= before:
            yield (
                f"lease {lease} of {env} is used on generation {row.number('generation')}, though it was granted "
                f"before that generation was published"
            )
        self._leases[env] = (max(highest, lease), before)

    def _begun(self, row: Row) -> Iterator[str]:
        env, number = row.text("env"), row.number("number")
        live = self._identities.setdefault(env, {})
        if number in live:
            yield f"action {number} of {env} begins, though it is under way"
        live[number] = _identity(row)
        yield from self._lease(row)

    def _ended(self, row: Row) -> Iterator[str]:
        env, number = row.text("env"), row.number("number")
        begun = self._identities.get(env, {}).pop(number, None)
        if begun is None:
            yield f"action {number} of {env} ends, but no such action is under way on generation {_now(self, env)}"
        elif begun != _identity(row):
            names = ("lease", "generation", "epoch", "activation")
            differ = [
                f"{name} {old} became {new}"
                for name, old, new in zip(names, begun, _identity(row), strict=True)
                if old != new
            ]
            yield f"action {number} of {env} did not end where it began: {', '.join(differ)}"

    def _recorded(self, row: Row) -> Iterator[str]:
        env, generation = row.text("env"), row.number("generation")
        if generation != _now(self, env):
            what = "an evaluation" if row.kind == kinds.EVALUATED else f"the request {row.text('url')}"
            yield f"{what} of {env} is of generation {generation}, while {_now(self, env)} is published"
        yield from self._lease(row)


def _identity(row: Row) -> tuple[int, int, int, int]:
    return row.number("lease"), row.number("generation"), row.number("epoch"), row.number("activation")


def _now(checker: Checker, env: str) -> int:
    return checker.heads.of(env).generation
