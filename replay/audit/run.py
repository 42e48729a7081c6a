"""The audit: every checker over every row, once, in position order, with memory that does not grow with the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.aborts import Aborts
from statefork.replay.audit.admission import Admission
from statefork.replay.audit.branches import Branches
from statefork.replay.audit.chain import Chain
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.drain import Drain
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.life import Life
from statefork.replay.audit.manifests import Manifests
from statefork.replay.audit.operations import Operations
from statefork.replay.audit.orphans import Orphans
from statefork.replay.audit.publish import Publish
from statefork.replay.audit.readiness import Readiness
from statefork.replay.audit.report import FINDINGS_MAX, Checked, Finding, Report, Unreadable
from statefork.replay.audit.retention import Retention
from statefork.replay.audit.rows import Row
from statefork.replay.audit.secrecy import Secrecy
from statefork.replay.audit.tickets import Tickets

CHECKERS: tuple[type[Checker], ...] = (
    Operations, Admission, Drain, Manifests, Publish, Branches, Tickets, Readiness, Aborts, Chain, Life, Orphans,
    Retention, Secrecy,
)  # fmt: skip
"""I1 to I12, in order. I10 has two: the chain, and the life that it tells; I11 too: what is removed, what may go."""

Make = Callable[[Heads], Checker]
Progress = Callable[[int], None]
"""Told the position of the row that was just looked at."""

_UNREADABLE_MAX = 100
_NOTES_MAX = 100


class Audit:
    """One run: ``look`` at every row, then ``finish``; ``report`` at any time. Every checker sees what it asks for.

    A context manager, for what checkers hold outside memory.
    """

    def __init__(
        self,
        more: Iterable[Make] = (),
        kept_heads: Iterable[tuple[str, int, str]] | None = None,
        *,
        checkers: Iterable[Make] = CHECKERS,
    ) -> None:
        self.heads = Heads()
        self._checkers = [make(self.heads) for make in (*checkers, *more)]
        self._asked: dict[str, list[Checker]] = {}  # kind -> who looks at it
        self._findings: list[Finding] = []
        self._left_out = 0
        self._unreadable: list[str] = []
        self._notes: list[str] = []
        self._journal = ""
        self._events = 0
        self.keeps(kept_heads)

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free what is held outside memory. Reports can still be had."""
        for checker in self._checkers:
            checker.close()
        self.heads.close()

    def keeps(self, kept_heads: Iterable[tuple[str, int, str]] | None) -> None:
        """The heads that the journal file keeps of every stream, to be compared with the rows at the end."""
        for checker in self._checkers:
            if isinstance(checker, Chain):
                checker.kept_heads = kept_heads

    def run(self, rows: Iterable[Row], progress: Progress | None = None) -> Report:
        """Look at every row and say what was found."""
        with self:
            try:
                for row in rows:
                    self.look(row)
                    if progress is not None:
                        progress(row.position)
            except Unreadable as error:
                self.cannot(str(error))
            self.finish()
            return self.report()

    def look(self, row: Row) -> list[Finding]:
        """Look at the next row: what is wrong with it."""
        self._events += 1
        found: list[Finding] = []
        if row.broken:
            self.cannot(f"{row.broken} (position {row.position})")
        elif row.kind not in kinds.KNOWN:
            self.cannot(f"an event of the kind {row.kind}, which this audit does not know (position {row.position})")
        if row.kind == kinds.JOURNAL and not self._journal:
            self._journal = str(row.data.get("journal", ""))
        for checker in self._who_asks(row):
            try:
                for sentence in checker.look(row):
                    found.append(checker.finding(row, sentence))  # noqa: PERF401 - what came before a failure counts
            except (Unreadable, OSError) as error:
                self.cannot(_why(error))
        if not row.broken:
            try:
                self.heads.note(row)
            except Unreadable as error:
                self.cannot(str(error))
        if found:
            self._keep(found)
        return found

    def finish(self) -> list[Finding]:
        """Look at the journal as a whole. Nothing can be looked at afterwards."""
        found: list[Finding] = []
        for checker in self._checkers:
            found += self._guarded(checker.last_findings())
        self._notes += [f"{op} of {env} is under way" for env, op in sorted(self.heads.under_way.items())]
        for checker in self._checkers:
            self._notes += checker.notes()
        self._keep(found)
        return found

    def cannot(self, sentence: str) -> None:
        """Something could not be read, so that nothing is claimed about it."""
        if sentence not in self._unreadable and len(self._unreadable) < _UNREADABLE_MAX:
            self._unreadable.append(sentence)

    def note(self, sentence: str) -> None:
        """Something to be told that breaks no rule."""
        self._notes.append(sentence)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What could not be read so far."""
        return tuple(self._unreadable)

    def _who_asks(self, row: Row) -> list[Checker]:
        if row.broken:  # its place and its hash can be judged all the same
            return [checker for checker in self._checkers if isinstance(checker, Chain)]
        asked = self._asked.get(row.kind)
        if asked is None:
            asked = [checker for checker in self._checkers if checker.kinds is None or row.kind in checker.kinds]
            if row.kind in kinds.KNOWN:
                self._asked[row.kind] = asked
        return asked

    def _guarded(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        try:
            yield from findings
        except (Unreadable, OSError) as error:
            self.cannot(_why(error))

    def _keep(self, findings: list[Finding]) -> None:
        room = FINDINGS_MAX - len(self._findings)
        self._findings += findings[:room]
        self._left_out += len(findings[room:])

    def report(self) -> Report:
        """What was found so far."""
        return Report(
            journal=self._journal,
            events=self._events,
            environments=len(self.heads),
            checked=tuple(
                Checked(
                    invariant=checker.invariant,
                    rule=checker.rule,
                    looked_at=checker.looked_at,
                    violations=checker.violations,
                )
                for checker in self._checkers
            ),
            findings=tuple(self._findings),
            findings_left_out=self._left_out,
            unreadable=tuple(self._unreadable),
            notes=tuple(self._notes[:_NOTES_MAX]),
        )


def _why(error: Unreadable | OSError) -> str:
    """A sentence: a folder that may not be seen is met anywhere."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} can't be read: {error.strerror}"
    return str(error)
