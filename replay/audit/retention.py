"""I11: a generation goes only where an earlier one stays from which it can be made again, and nothing is made of it.

What was begun before it went, or meets it going, may still be made of it: its content is there until that has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import NUMBER_MAX, Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = """
create table generation (env text, number int, actions int, opaque int, before_env text, before_number int,
                         mark text default '', pruned int default 0,
                         primary key (env, number)) without rowid;
create table chosen (env text primary key, retention text, position int) without rowid;
create table spoilt (env text primary key) without rowid;
create table removed (resource text, version text, position int, primary key (resource, version)) without rowid;
"""


_ORIGINS = frozenset({"create", "clone", "import"})
_LAST = re.compile(r"last ([1-9][0-9]*)")
_RETENTION = re.compile(rf"all|forks and marks|{_LAST.pattern}")


class _Generation(NamedTuple):
    actions: int
    opaque: int  # what led to it can't be done again
    before_env: str | None  # what it goes on from; of one that went, the nearest one that stayed then
    before_number: int | None
    mark: str
    pruned: int  # where it went

    @property
    def before(self) -> tuple[str, int] | None:
        return None if self.before_env is None or self.before_number is None else (self.before_env, self.before_number)


class _Going(NamedTuple):
    number: int
    nearest: tuple[str, int]
    actions: int


class Retention(Checker):
    """Keeps for each generation whether what led to it can be done again, and whether it is still there."""

    invariant = "I11"
    rule = "what goes can be made again, and nothing is made of it any more"
    kinds = frozenset(
        {
            kinds.CREATED, kinds.ACTION_BEGUN, kinds.ACTION_ENDED, kinds.PUBLISHED, kinds.PRUNED, kinds.MARKED,
            kinds.CHOSEN, kinds.COLLECTED,
        }
    )  # fmt: skip

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        match row.kind:
            case kinds.CREATED:
                self._clean(row.text("env"))
            case kinds.ACTION_BEGUN:
                if row.table("action").get("type") == "opaque":
                    self._spoil(row.text("env"))
            case kinds.ACTION_ENDED:
                env = row.text("env")
                if row.text("outcome") == "unknown" and row.number("generation") == self.heads.of(env).generation:
                    self._spoil(env)
            case kinds.PUBLISHED:
                yield from self._published(row)
            case kinds.COLLECTED:
                self._spill.execute(
                    "insert or replace into removed values (?, ?, ?)",
                    (row.text("resource"), row.text("name"), row.position),
                )
            case kinds.PRUNED:
                yield from self._pruned(row)
            case kinds.CHOSEN:
                yield from self._chosen(row)
            case _:
                yield from self._marked(row)

    def _spoil(self, env: str) -> None:
        self._spill.execute("insert or ignore into spoilt values (?)", (env,))

    def _clean(self, env: str) -> bool:
        """Whether anything was spoilt since the last time."""
        return self._spill.execute("delete from spoilt where env = ?", (env,)).rowcount > 0

    def _published(self, row: Row) -> Iterator[str]:
        env, number, op = row.text("env"), row.number("generation"), row.text("op")
        opaque = (self._clean(env) and op == "snapshot") or self.heads.of(env).importing
        source = row.moment("source")
        before = None if op in _ORIGINS else source or (env, number - 1)
        self._spill.execute(
            "insert or replace into generation (env, number, actions, opaque, before_env, before_number) "
            "values (?, ?, ?, ?, ?, ?)",
            (env, number, row.number("actions", 0), opaque, *(before or (None, None))),
        )
        gone = self._of(*source) if source is not None else None
        if source is None or gone is None or not gone.pruned:
            return
        for resource, sealed in row.sealed():
            removed = self._spill.execute(
                "select position from removed where resource = ? and version = ?", (resource, sealed["version"])
            ).fetchone()
            if removed is not None and removed[0] > gone.pruned:
                yield (
                    f"{op} published {env}@{number} from {source[0]}@{source[1]}, which went at position {gone.pruned},"
                    f" and its version {sealed['version']} of {resource} was removed at position {removed[0]}"
                )

    def _of(self, env: str, number: int) -> _Generation | None:
        columns = ", ".join(_Generation._fields)
        found = self._spill.execute(
            f"select {columns} from generation where env = ? and number = ?", (env, number)
        ).fetchone()
        return None if found is None else _Generation(*found)

    def _pruned(self, row: Row) -> Iterator[str]:
        env, retention = row.text("env"), row.text("retention")
        going = [_going(row, item) for item in row.items("pruned")]
        if row.text("by", "") == "policy":
            yield from self._allowed(env, retention)
        for one in going:
            self.looked_at += 1
            yield from self._goes(env, retention, one.number)
        self._spill.executemany(
            "update generation set pruned = ? where env = ? and number = ?",
            [(row.position, env, one.number) for one in going],
        )
        for one in going:
            yield from self._again(env, one)

    def _chosen(self, row: Row) -> Iterator[str]:
        env, retention = row.text("env"), row.text("retention", "")
        self.looked_at += 1
        if retention and not _RETENTION.fullmatch(retention):
            yield f"the retention {retention!r} was chosen for {env}, which is none"
        self._spill.execute("insert or replace into chosen values (?, ?, ?)", (env, retention, row.position))

    def _allowed(self, env: str, retention: str) -> Iterator[str]:
        """What a publish lets go, it lets go by what was chosen last. What a contract says need not be in a journal."""
        found = self._spill.execute("select retention, position from chosen where env = ?", (env,)).fetchone()
        if found is not None and found[0] and found[0] != retention:
            yield (
                f"generations of {env} went by the retention {retention!r}, and {found[0]!r} was chosen at position "
                f"{found[1]}"
            )

    def _goes(self, env: str, retention: str, number: int) -> Iterator[str]:
        name, found = f"{env}@{number}", self._of(env, number)
        if found is None:
            yield f"{name} was pruned, and was never published"
        elif found.pruned:
            yield f"{name} was pruned twice, the first time at position {found.pruned}"
        elif number in (1, self.heads.of(env).generation):
            yield f"{name} was pruned, which is {'where the environment began' if number == 1 else 'its present'}"
        elif found.mark:
            yield f"{name} was pruned, and it bore the mark {found.mark!r}"
        elif found.opaque:
            yield f"{name} was pruned, and what led to it can't be done again"
        elif self._stays(env, number, retention):
            yield f"{name} was pruned, which stays under the retention {retention!r}"

    def _stays(self, env: str, number: int, retention: str) -> bool:
        """By its number. A child may be born of what is just going, so nothing is said of those that have children."""
        if retention == "forks and marks":
            return False
        last = _LAST.fullmatch(retention)
        return last is None or number > self.heads.of(env).generation - int(last[1])

    def _again(self, env: str, going: _Going) -> Iterator[str]:
        """The nearest generation that is said to stay does, and is so many actions before."""
        gone, kept = self._of(env, going.number), self._of(*going.nearest)
        if gone is None:
            return
        found = self._nearest(gone)
        name, called = f"{env}@{going.number}", f"{going.nearest[0]}@{going.nearest[1]}"
        if kept is None or kept.pruned:
            yield f"{name} is to be made again from {called}, which is not there"
        elif found != going.nearest:
            yield f"{name} is to be made again from {called}, which is not the nearest on the way to it"
        elif gone.actions - kept.actions != going.actions:
            yield f"{name} is after {gone.actions} actions, not {going.actions} after {called}"
        if found is not None:  # so that whoever goes the way again need not go all of it
            self._spill.execute(
                "update generation set before_env = ?, before_number = ? where env = ? and number = ?",
                (*found, env, going.number),
            )

    def _nearest(self, gone: _Generation) -> tuple[str, int] | None:
        """The first generation on the way back that is there."""
        at, seen = gone.before, set[tuple[str, int]]()
        while at is not None and at not in seen:
            seen.add(at)
            found = self._of(*at)
            if found is None or not found.pruned:
                return at
            at = found.before
        return None

    def _marked(self, row: Row) -> Iterator[str]:
        env, number, mark = row.text("env"), row.number("generation"), row.text("mark")
        self.looked_at += 1
        found = self._of(env, number)
        if found is None or (found.pruned and mark):
            yield f"{env}@{number} got the mark {mark!r}, and is not there"
        self._spill.execute("update generation set mark = ? where env = ? and number = ?", (mark, env, number))


def _going(row: Row, item: object) -> _Going:
    """One generation of the event. Raises Unreadable."""
    match item:
        case {
            "generation": int() as number,
            "nearest": {"env": str() as env, "generation": int() as nearest},
            "actions": int() as actions,
        } if max(abs(number), abs(nearest)) < NUMBER_MAX:
            return _Going(number, (env, nearest), actions)
        case _:
            raise Unreadable(f"{row.kind} has no usable list 'pruned'", position=row.position)
