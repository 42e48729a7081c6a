"""Where each environment stands at the row being looked at: the audit's own small account, one entry per environment.

It believes what publishes say, right or wrong, so that one wrong event does not make every later one look wrong;
whether the publish itself was right is the checkers' question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from statefork.replay.audit.rows import Row

CREATED = "environment.created/1"
BEGUN = "transition.begun/1"
DRAINED = "transition.drained/1"
PUBLISHED = "generation.published/1"
ABORTED = "transition.aborted/1"
FORKED = "environment.forked/1"
ACTIVATED = "environment.activated/1"
PARKED = "environment.parked/1"
RETIRED = "environment.retired/1"
ACTION_BEGUN = "action.begun/1"
ACTION_ENDED = "action.ended/1"
REVOKED = "lease.revoked/1"
INPUT = "input.recorded/1"
EVALUATED = "evaluation.recorded/1"
REFUSED = "request.refused/1"
STARTED = "engine.started/1"
STOPPED = "engine.stopped/1"
CONTRACT = "contract.registered/1"
PROVISIONED = "base.provisioned/1"
JOURNAL = "journal.created/1"

KNOWN = frozenset(
    {
        JOURNAL, STARTED, STOPPED, CONTRACT, PROVISIONED, CREATED, BEGUN, DRAINED, PUBLISHED, ABORTED, FORKED,
        ACTIVATED, PARKED, RETIRED, ACTION_BEGUN, ACTION_ENDED, REVOKED, INPUT, REFUSED, EVALUATED,
        "command.answered/1", "environment.queued/1", "orphan.collected/1", "recovery.finished/1", "replay.verdict/1",
    }
)  # fmt: skip

CONTINUING = frozenset({"snapshot"})  # operations under which epoch, pages and client-visible bindings stay


@dataclass(slots=True)
class Head:
    """One environment, as the rows before this one tell it."""

    env: str
    contract: str = ""
    how: str = ""
    created_at: int = 0  # position of its first event; 0 when the journal never created it
    generation: int = 0
    epoch: int = 0
    activation: int = 0  # 0: parked
    last_activation: int = 0
    published_at: int = 0
    transition: str = ""  # the one under way; empty when serving
    op: str = ""
    begun_at: int = 0
    drained_at: int = 0
    fenced: tuple[str, ...] = ()
    retired: bool = False
    actions: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # live: number -> (lease, generation, at)


class Heads:
    """Fed with every row *after* the checkers have seen it."""

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads.values())

    def of(self, env: str) -> Head:
        """The standing of an environment; an empty one when nothing was said of it yet."""
        found = self._heads.get(env)
        return found if found is not None else Head(env=env)

    def note(self, row: Row) -> None:
        """Take a row into account."""
        if row.kind == STARTED:  # whatever was bound died with the engine before
            for head in self._heads.values():
                head.activation = 0
        if not row.stream.startswith(("env/", "act/")):
            return
        env = row.text("env")
        if row.kind == CREATED:
            self._heads.setdefault(env, Head(env=env))
        head = self._heads.setdefault(env, Head(env=env))
        match row.kind:
            case "environment.created/1":
                head.created_at = head.created_at or row.position
                head.contract, head.how = row.text("contract"), row.text("how")
            case "transition.begun/1":
                head.transition, head.op, head.begun_at = row.text("transition"), row.text("op"), row.position
                head.drained_at, head.fenced = 0, ()
            case "transition.drained/1":
                head.drained_at = row.position
                held = [item for item in row.items("held") if isinstance(item, dict)]
                head.fenced = tuple(str(item.get("holder")) for item in held if item.get("how") == "fenced")
            case "generation.published/1":
                self._published(head, row)
            case "transition.aborted/1":
                head.transition, head.op, head.drained_at, head.fenced = "", "", 0, ()
                if not head.generation:
                    head.created_at = 0  # its founding failed: it never existed, and its name is free
            case "environment.activated/1":
                head.activation = head.last_activation = row.number("activation")
            case "environment.parked/1":
                head.activation = 0
            case "environment.retired/1":
                head.retired, head.activation = True, 0
                head.actions.clear()
            case "action.begun/1":
                head.actions[row.number("number")] = (row.number("lease"), row.number("generation"), row.position)
            case "action.ended/1":
                head.actions.pop(row.number("number"), None)
            case _:
                pass

    def _published(self, head: Head, row: Row) -> None:
        head.generation, head.epoch = row.number("generation"), row.number("epoch")
        head.contract = row.text("contract")
        head.published_at = row.position
        head.transition, head.op, head.drained_at, head.fenced = "", "", 0, ()
        head.actions.clear()
        if row.text("op") not in CONTINUING:
            head.activation = 0  # until the successor is bound, which is said in the same append
