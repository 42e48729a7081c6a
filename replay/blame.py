"""Which action last changed a row, a file, a key: what was found, as a value."""

from __future__ import annotations

import msgspec

from statefork.engine.errors import ContractError
from statefork.engine.ports import Change
from statefork.journal.values import Json, Moment
from statefork.replay.covering import covered_action
from statefork.replay.lineage import Act, Step, Witnessed
from statefork.replay.verdict import describe

NAMED_MAX = 20

ROWS = frozenset({"sqlite", "postgres"})
FILES = frozenset({"files", "derived", "process"})


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about: the names under which a difference may tell it, and of which resources."""

    label: str
    names: frozenset[str]
    adapters: frozenset[str] = frozenset()  # empty: any
    resource: str | None = None


def row(table: str, key: Json, resource: str | None = None) -> Wanted:
    """A row by its key: of several columns a list, or a text with commas."""
    parts = [str(part) for part in key] if isinstance(key, list | tuple) else [str(key)]
    names = {f"{table}[{', '.join(parts)}]"}
    if isinstance(key, str) and "," in key:
        names.add(f"{table}[{', '.join(part.strip() for part in key.split(','))}]")
    return Wanted(label=f"{table}[{', '.join(parts)}]", names=frozenset(names), adapters=ROWS, resource=resource)


def file(path: str, resource: str | None = None) -> Wanted:
    """A file by its path in the tree."""
    plain = path.strip("/")
    return Wanted(label=plain, names=frozenset({plain}), adapters=FILES, resource=resource)


def item(name: str, resource: str | None = None) -> Wanted:
    """Anything, by the name under which a difference tells it: a cookie, a key of storage or of a cache."""
    return Wanted(label=name, names=frozenset({name}), resource=resource)


def asked(row_: tuple[str, Json] | None, file_: str | None, item_: str | None, resource: str | None) -> Wanted:
    """The one thing that is asked about. Raises ContractError unless it is one."""
    if sum(one is not None for one in (row_, file_, item_)) != 1:
        raise ContractError("blame is asked about one row, one file or one item", hint="Give one of them")
    if row_ is not None:
        return row(*row_, resource)
    return file(file_, resource) if file_ is not None else item(str(item_), resource)


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """The last change of one thing on the way to a moment.

    ``kind``: added, removed or changed; empty where nothing changed it since the origin, or it was never there.
    ``certain``: it was this action and no other. Otherwise it is one of ``between``, and ``why`` says why no more is
    known. ``aside``: fields that had another value when it was done again (a time), while others that changed had the
    same. ``ref`` is the moment after the action; ``number`` 0: no action did it. ``redone``: how many steps had to be
    done again to tell.
    """

    env: str
    item: str
    resource: str = ""
    kind: str = ""
    before: Json = None
    after: Json = None
    ref: str = ""
    number: int = 0
    action: dict[str, Json] = {}
    step: str = ""
    outcome: str = ""
    error: str = ""
    certain: bool = True
    between: tuple[str, ...] = ()
    why: str = ""
    aside: tuple[str, ...] = ()
    redone: int = 0

    @property
    def found(self) -> bool:
        """Whether something changed it at all."""
        return bool(self.kind)


CONTENT = frozenset({"kind", "bytes", "sha256", "target"})
"""What a file is, in a difference of trees."""


def aside(recorded: Change, left: Change) -> tuple[str, ...]:
    """The fields in which what was done again differs, where at least one that changed then came out the same.

    ``recorded``: what the steps changed; ``left``: what is otherwise now. Nothing where it is another change, as that
    of a file's content is: that its mode is the same says little.
    """
    if left.kind != "changed" or not isinstance(left.before, dict) or not isinstance(left.after, dict):
        return ()
    now, was = recorded.after, recorded.before
    if not isinstance(now, dict):
        return ()
    changed = {name for name, value in now.items() if not isinstance(was, dict) or was.get(name) != value}
    differs = {name for name, value in left.after.items() if left.before.get(name) != value}
    return tuple(sorted(differs)) if differs < changed and not differs & CONTENT else ()


def told(step: Step, witnessed: Witnessed) -> dict[str, object]:
    """The fields of a blame that are of the step itself."""
    acted = isinstance(step, Act)
    return {
        "number": step.number if isinstance(step, Act) else step.after,
        "action": covered_action(step.action) if isinstance(step, Act) else {},
        "step": describe(step),
        "outcome": witnessed.outcome if acted or witnessed.status == 0 else f"answered {witnessed.status}",
        "error": witnessed.error,
    }


def names_of(steps: list[tuple[Step, Witnessed]]) -> tuple[str, ...]:
    """What people call the steps; the middle is left out where there are very many."""
    names = [describe(step) for step, _ in steps]
    if len(names) > NAMED_MAX:
        half = NAMED_MAX // 2
        names = [*names[:half], f"… {len(names) - 2 * half} more", *names[-half:]]
    return tuple(names)


def ref_after(start: Moment, start_actions: int, number: int) -> str:
    """The moment after an action that followed a generation and was left behind, as people name it."""
    return f"{start}+{number - start_actions}" if number > start_actions else str(start)
