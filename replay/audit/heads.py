"""Where each environment stands at the row being looked at: the audit's own small account, one entry per environment.

It believes what publishes say, right or wrong, so that one wrong event does not make every later one look wrong;
whether the publish itself was right is the checkers' question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import Kept
from statefork.replay.audit.versions import Versions

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
EXCHANGED = "exchange.recorded/1"
EVALUATED = "evaluation.recorded/1"
REFUSED = "request.refused/1"
COLLECTED = "orphan.collected/1"
RECOVERED = "recovery.finished/1"
STARTED = "engine.started/1"
STOPPED = "engine.stopped/1"
CONTRACT = "contract.registered/1"
PROVISIONED = "base.provisioned/1"
JOURNAL = "journal.created/1"
ANSWERED = "command.answered/1"
IMPORTED = "environment.imported/1"
PRUNED = "generations.pruned/1"
MARKED = "generation.marked/1"
CHOSEN = "policy.chosen/1"

KNOWN = frozenset(
    {
        JOURNAL, STARTED, STOPPED, CONTRACT, PROVISIONED, CREATED, BEGUN, DRAINED, PUBLISHED, ABORTED, FORKED,
        ACTIVATED, PARKED, RETIRED, ACTION_BEGUN, ACTION_ENDED, REVOKED, INPUT, EXCHANGED, REFUSED,
        EVALUATED, ANSWERED, IMPORTED, PRUNED, MARKED, CHOSEN, "environment.queued/1", COLLECTED, RECOVERED,
        "replay.verdict/1",
    }
)  # fmt: skip

CONTINUING = frozenset({"snapshot"})  # operations under which epoch, pages and client-visible bindings stay


class Began(NamedTuple):
    """An action that is under way: whose it is, and where it began."""

    lease: int
    generation: int
    epoch: int
    activation: int
    at: int
    run: int


@dataclass(slots=True)
class Head:
    """One environment, as the rows before this one tell it."""

    env: str
    place: str = ""  # the state directory that has it, where several share the journal
    contract: str = ""
    how: str = ""
    created_at: int = 0  # position of its first event; 0 when the journal never created it
    unfounded_at: int = 0  # where its founding was aborted; 0 once it is created again
    generation: int = 0
    epoch: int = 0
    activation: int = 0  # 0: parked
    last_activation: int = 0
    given_up: int = 0  # the last activation that an aborted transition of this run was staging
    aborted_at: int = 0  # where the last transition was aborted; 0 once something is published
    published_at: int = 0
    transition: str = ""  # the one under way; empty when serving
    op: str = ""
    begun_at: int = 0
    drained_at: int = 0
    fenced: tuple[str, ...] = ()
    retired_at: int = 0
    run: int = 0  # of the engine, in which the environment was last spoken of
    lease_max: int = 0  # highest lease of this run
    lease_published: int = 0  # highest lease at the last publish
    number: int = 0  # of the last action of its lineage
    actions: dict[int, Began] = field(default_factory=dict)  # live, by number
    revoked: dict[int, int] = field(default_factory=dict)  # lease -> where it was revoked; of this generation

    @property
    def importing(self) -> bool:
        """Whether what is told of it happened in another journal: no lease, activation or ticket is of this one."""
        return self.op == "import"

    @property
    def retired(self) -> bool:
        """Whether it has ended."""
        return bool(self.retired_at)


_NOBODY = Head(env="")


class Heads:
    """Fed with every row *after* the checkers have seen it."""

    def __init__(self) -> None:
        self._heads: Kept[Head] = Kept()
        self._last = _NOBODY  # the one that was asked for last: several checkers ask for it at each row
        self.versions = Versions()  # every sealed version that a manifest has named so far
        self.journal = ""  # its id
        self.position = 0  # of the last row
        self.under_way: dict[str, str] = {}  # environments in a transition, with its operation
        self.places: dict[str, str] = {}  # every state directory of which an engine has started, and where it is
        self._runs: dict[str, int] = {}  # which opening of an engine this is, for each place
        self._run = 0  # the last one

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[Head]:
        self._last = _NOBODY
        for head in self._heads.values():
            yield self._present(head)

    def close(self) -> None:
        """Let go of everything."""
        self._heads.close()
        self.versions.close()

    def of(self, env: str) -> Head:
        """The standing of an environment; an empty one when nothing was said of it yet."""
        if env == self._last.env and self._last.run == self._runs.get(self._last.place, 0):
            return self._last
        found = self._heads.get(env)
        if found is None:
            return Head(env=env, run=self._runs.get("", 0))
        self._last = self._present(found)
        return self._last

    def _present(self, head: Head) -> Head:
        run = self._runs.get(head.place, 0)
        if head.run != run:  # whatever was bound died with the engine before, and leases are counted anew
            head.run, head.activation, head.lease_max, head.lease_published = run, 0, 0, 0
            head.given_up = 0
            head.revoked.clear()
        return head

    def note(self, row: Row) -> None:
        """Take a row into account."""
        self.position = row.position
        if row.kind == STARTED:
            self._run += 1
            self._runs[row.place] = self._run
            self.places[row.place] = row.text("where", "")
        elif row.kind == JOURNAL:
            self.journal = self.journal or row.text("journal")
        elif row.kind == PROVISIONED:
            self.versions.note(row, "the base")
        if not row.stream.startswith(("env/", "act/")):
            return
        env = row.text("env")
        head = self.of(env)
        if head is not self._last:
            self._heads.put(env, head)
        self._take(head, row)

    def begun_by(self, place: str) -> dict[str, str]:
        """What is under way in the environments of a place."""
        return {env: op for env, op in self.under_way.items() if self.of(env).place == place}

    def owner(self, place: str) -> str:
        """What the handles of a place bear."""
        return place or self.journal

    def _take(self, head: Head, row: Row) -> None:
        match row.kind:
            case "environment.created/1":
                head.created_at = head.created_at or row.position
                head.unfounded_at = 0
                head.contract, head.how, head.place = row.text("contract"), row.text("how"), row.text("place", "")
                self._present(head)
                head.number = row.number("inherited_actions", 0)
            case "transition.begun/1":
                head.transition, head.op, head.begun_at = row.text("transition"), row.text("op"), row.position
                head.drained_at, head.fenced = 0, ()
                self.under_way[head.env] = head.op
            case "transition.drained/1":
                head.drained_at = row.position
                held = [item for item in row.items("held") if isinstance(item, dict)]
                head.fenced = tuple(str(item.get("holder")) for item in held if item.get("how") == "fenced")
            case "generation.published/1":
                self._published(head, row)
                self.versions.note(row, f"{head.env}@{head.generation}")
            case "transition.aborted/1":
                self._settled(head)
                head.aborted_at = row.position
                head.given_up = max(head.given_up, row.number("activation", 0))
                if not head.generation:
                    head.created_at, head.unfounded_at = 0, row.position  # it never existed, and its name is free
            case "environment.imported/1":
                self._settled(head)
            case "generations.pruned/1":
                self.versions.let_go(
                    f"{head.env}@{item.get('generation')}" for item in row.items("pruned") if isinstance(item, dict)
                )
            case "environment.activated/1":
                head.activation = head.last_activation = row.number("activation")
            case "environment.parked/1":
                head.activation = 0
            case "environment.retired/1":
                head.retired_at, head.activation = row.position, 0
                head.actions.clear()
            case _:
                self._acted(head, row)

    def _acted(self, head: Head, row: Row) -> None:
        match row.kind:
            case "action.begun/1":
                head.number, lease = row.number("number"), row.number("lease")
                head.actions[head.number] = Began(
                    lease,
                    row.number("generation"),
                    row.number("epoch"),
                    row.number("activation"),
                    row.position,
                    head.run,
                )
                head.lease_max = max(head.lease_max, lease)
            case "action.ended/1":
                head.actions.pop(row.number("number"), None)
            case "input.recorded/1" | "evaluation.recorded/1":
                head.lease_max = max(head.lease_max, row.number("lease"))
            case "exchange.recorded/1" if row.text("cause", "") != "binding":
                head.lease_max = max(head.lease_max, row.number("lease"))
            case "lease.revoked/1":
                head.revoked[row.number("lease")] = row.position
            case _:
                pass

    def _settled(self, head: Head) -> None:
        head.transition, head.op, head.drained_at, head.fenced = "", "", 0, ()
        self.under_way.pop(head.env, None)

    def _published(self, head: Head, row: Row) -> None:
        head.generation, head.epoch = row.number("generation"), row.number("epoch")
        head.contract = row.text("contract")
        head.published_at, head.unfounded_at, head.aborted_at = row.position, 0, 0
        head.number = row.number("actions", 0)
        head.lease_published = head.lease_max
        if not head.importing:  # that goes on until all of it is told
            self._settled(head)
        head.actions.clear()
        head.revoked.clear()
        if row.text("op") not in CONTINUING:
            head.activation = 0  # until the successor is bound, which is said in the same append
