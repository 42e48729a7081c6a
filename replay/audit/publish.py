"""I5: publish is one atomic append; before it the old generation serves, after it the new one."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Head, Heads
from statefork.replay.audit.rows import Row

_ONE_APPEND_MAX = 4  # a fork's append holds the child's publish, what goes with it, and the parent's event


class Publish(Checker):
    """Generations rise by one, each by a transition that was begun and that ended once; a fork tells its parent."""

    invariant = "I5"
    rule = "publish is one append, generations rise by one"
    kinds = frozenset(
        {
            kinds.CREATED, kinds.BEGUN, kinds.DRAINED, kinds.PUBLISHED, kinds.ABORTED, kinds.FORKED, kinds.ACTIVATED,
            kinds.PARKED, kinds.RETIRED, kinds.STOPPED, kinds.IMPORTED,
        }
    )  # fmt: skip

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._told: dict[str, int] = {}  # child -> position at which the parent's stream names it
        self._untold: dict[str, tuple[str, int]] = {}  # child -> its parent, and where its first publish stands

    def look(self, row: Row) -> Iterator[str]:
        self.looked_at += 1
        match row.kind:
            case kinds.CREATED:
                yield from self._created(row)
            case kinds.BEGUN:
                yield from self._begun(row)
            case kinds.DRAINED:
                yield from self._same_transition(row, "drained")
            case kinds.ABORTED:
                yield from self._same_transition(row, "aborted")
            case kinds.PUBLISHED:
                yield from self._published(row)
            case kinds.FORKED:
                yield from self._forked(row)
            case kinds.IMPORTED:
                yield from self._imported(row)
            case kinds.ACTIVATED | kinds.PARKED | kinds.RETIRED:
                head = self.heads.of(row.text("env"))
                if not head.generation and row.kind != kinds.RETIRED:
                    yield f"{head.env} is {row.kind.split('.')[1].split('/')[0]}, but nothing of it was published"
                elif row.number("generation") != head.generation:
                    said = row.number("generation")
                    yield f"{head.env} stands on {head.generation}, not on {said} as this event says"
            case kinds.STOPPED:
                for env, op in self.heads.begun_by(row.place).items():
                    yield f"the engine stopped in good order with {op} of {env} unsettled"
            case _:
                pass

    def finish(self) -> Iterator[str]:
        for child, (parent, position) in self._untold.items():
            yield f"{child} was published at position {position} as a child of {parent}, whose stream does not say so"
        for child, position in self._told.items():
            yield f"{child} is told to its parent (position {position}), but its first generation was not published"

    def _created(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        if head.created_at:
            yield f"{head.env} is created again; it was created at position {head.created_at}"

    def _begun(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        op, base = row.text("op"), row.number("base")
        if not head.created_at:
            yield f"{op} begins in {head.env}, which was never created"
        if head.transition:
            yield f"{op} of {head.env} begins, though {head.op} (position {head.begun_at}) is unsettled"
        if base != head.generation:
            yield f"{op} of {head.env} begins on generation {base}, while {head.generation} is published"
        if head.retired:
            yield f"{op} begins in {head.env}, which is retired"

    def _same_transition(self, row: Row, how: str) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        if row.text("transition") != head.transition:
            yield f"a transition of {head.env} is {how} that is not under way: {row.text('transition')}"

    def _published(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        op, generation, epoch = row.text("op"), row.number("generation"), row.number("epoch")
        yield from self._same_transition(row, "published")
        brings = "import" if generation == 1 else "snapshot"
        if head.transition and op != (brings if head.importing else head.op):
            yield f"{head.op} of {head.env} began, {op} was published"
        if generation != head.generation + 1:
            yield f"{head.env} goes from generation {head.generation} to {generation}: a publish is missing or doubled"
        wanted = head.epoch if op in kinds.CONTINUING else generation
        if epoch != wanted:
            yield f"{op} published {head.env}@{generation} with epoch {epoch} instead of {wanted}"
        if not head.generation:
            yield from self._first(row, head)

    def _imported(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        yield from self._same_transition(row, "ended")
        if not head.importing:
            yield f"{head.env} is imported, though no import of it is under way"
        elif not head.generation or row.number("generation") != head.generation:
            yield f"an import brought {head.env}@{head.generation}, and says {row.number('generation')}"

    def _first(self, row: Row, head: Head) -> Iterator[str]:
        if head.how not in ("fork", "clone"):
            return
        source = row.moment("source")
        parent = source[0] if source else "nobody"
        told = self._told.pop(head.env, 0)
        if not told:
            self._untold[head.env] = (parent, row.position)
        elif row.position - told > _ONE_APPEND_MAX:
            yield f"{head.env} was published apart from the event that tells its parent (position {told})"

    def _forked(self, row: Row) -> Iterator[str]:
        child = row.text("child")
        if child not in self._untold:
            self._told[child] = row.position
            return
        parent, published = self._untold.pop(child)
        if row.position - published > _ONE_APPEND_MAX:
            yield f"{child} was published (position {published}) apart from the event that tells its parent {parent}"
