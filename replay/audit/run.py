"""The audit: every checker over every row, once, in position order, with memory that does not grow with the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.admission import Admission
from statefork.replay.audit.branches import Branches
from statefork.replay.audit.chain import Chain
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.drain import Drain
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.manifests import Manifests
from statefork.replay.audit.operations import Operations
from statefork.replay.audit.publish import Publish
from statefork.replay.audit.report import FINDINGS_MAX, Checked, Finding, Report, Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.tickets import Tickets

CHECKERS: tuple[type[Checker], ...] = (Operations, Admission, Drain, Manifests, Publish, Branches, Tickets, Chain)

Progress = Callable[[int], None]
"""Told the position of the row that was just looked at."""

_UNREADABLE_MAX = 100


class Audit:
    """One run. ``checkers`` see every readable row; the chain is checked on unreadable ones, too."""

    def __init__(
        self,
        more: Iterable[Callable[[Heads], Checker]] = (),
        kept_heads: Iterable[tuple[str, int, str]] | None = None,
    ) -> None:
        self.heads = Heads()
        self._checkers = [kind(self.heads) for kind in CHECKERS]
        self._checkers += [make(self.heads) for make in more]
        for checker in self._checkers:
            if isinstance(checker, Chain):
                checker.kept_heads = kept_heads
        self._findings: list[Finding] = []
        self._left_out = 0
        self._unreadable: list[str] = []
        self._journal = ""
        self._events = 0

    def run(self, rows: Iterable[Row], progress: Progress | None = None) -> Report:
        """Look at every row and say what was found."""
        with ExitStack() as stack:
            for checker in self._checkers:
                stack.callback(checker.close)
            try:
                for row in rows:
                    self._events += 1
                    self._row(row)
                    if progress is not None:
                        progress(row.position)
            except Unreadable as error:
                self._cannot(str(error))
            for checker in self._checkers:
                self._keep(self._guarded(checker.last_findings()))
        return self._report()

    def _row(self, row: Row) -> None:
        readable = not row.broken
        if not readable:
            self._cannot(f"{row.broken} (position {row.position})")
        elif row.kind not in kinds.KNOWN:
            self._cannot(f"an event of the kind {row.kind}, which this audit does not know (position {row.position})")
        if row.kind == kinds.JOURNAL and not self._journal:
            self._journal = str(row.data.get("journal", ""))
        for checker in self._checkers:
            if readable or isinstance(checker, Chain):
                self._keep(self._guarded(checker.findings(row)))
        if readable:
            try:
                self.heads.note(row)
            except Unreadable as error:
                self._cannot(str(error))

    def _guarded(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        try:
            yield from findings
        except Unreadable as error:
            self._cannot(str(error))

    def _keep(self, findings: Iterator[Finding]) -> None:
        for finding in findings:
            if len(self._findings) < FINDINGS_MAX:
                self._findings.append(finding)
            else:
                self._left_out += 1

    def _cannot(self, sentence: str) -> None:
        if sentence not in self._unreadable and len(self._unreadable) < _UNREADABLE_MAX:
            self._unreadable.append(sentence)

    def _report(self) -> Report:
        unsettled = [f"{head.op} of {head.env} is under way" for head in self.heads if head.transition]
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
            notes=tuple(unsettled[:_UNREADABLE_MAX]),
        )
