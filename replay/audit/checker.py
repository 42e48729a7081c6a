"""What every checker is: fed with rows one by one, it says which break its rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from statefork.replay.audit.heads import Heads
from statefork.replay.audit.report import Finding
from statefork.replay.audit.rows import Row


class Checker:
    """Base of the checkers. ``look`` sees a row while ``heads`` still stands at the row before it."""

    invariant: ClassVar[str]
    rule: ClassVar[str]  # the rule as a clause: "one generation per operation"
    kinds: ClassVar[frozenset[str] | None] = frozenset()  # of the events that it looks at; None: every one

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.looked_at = 0
        self.violations = 0

    def look(self, row: Row) -> Iterable[str]:
        """Sentences, one per broken rule; none for rows that are as they should be."""
        return ()

    def finish(self) -> Iterable[str]:
        """Sentences about the journal as a whole, after its last row."""
        return ()

    def notes(self) -> Iterable[str]:
        """What is worth knowing and breaks no rule, and what could not be looked at. Asked for after ``finish``."""
        return ()

    def close(self) -> None:
        """Free what the checker holds."""

    def finding(self, row: Row, sentence: str) -> Finding:
        """What ``look`` said of a row."""
        self.violations += 1
        env = row.data.get("env")
        return Finding(
            invariant=self.invariant,
            position=row.position,
            stream=row.stream,
            environment=env if isinstance(env, str) else "",
            sentence=sentence,
        )

    def last_findings(self) -> Iterator[Finding]:
        """What ``finish`` says, as findings."""
        for sentence in self.finish():
            self.violations += 1
            yield Finding(invariant=self.invariant, position=0, stream="journal", sentence=sentence)
