"""What an audit found: values that print as text or JSON and give the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

EXIT_CLEAN = 0
EXIT_VIOLATIONS = 1
EXIT_UNREADABLE = 2
FINDINGS_MAX = 1000  # findings beyond this are counted, not kept: a report's size does not grow with the journal


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule, at one event (``position`` 0: not at an event, but in the stores)."""

    invariant: str  # I1 … I12
    position: int
    stream: str
    sentence: str
    environment: str = ""  # the one it is about, where it is about one

    def __str__(self) -> str:
        where = f"position {self.position} ({self.stream})" if self.position else self.stream
        return f"{self.invariant} at {where}: {self.sentence}"


class Unreadable(Exception):
    """Something that had to be read can't be read, so nothing is claimed about it."""

    def __init__(self, sentence: str, *, position: int = 0) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.position = position

    def __str__(self) -> str:
        return f"{self.sentence} (position {self.position})" if self.position else self.sentence


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What one checker looks after, and how much of it there was to look at."""

    invariant: str
    rule: str
    looked_at: int
    violations: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole audit. ``clean`` means: everything could be read, and no rule was found broken."""

    journal: str
    events: int
    environments: int
    checked: tuple[Checked, ...]
    findings: tuple[Finding, ...] = ()
    findings_left_out: int = 0
    unreadable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """No violation and nothing unreadable."""
        return not self.findings and not self.unreadable

    @property
    def exit_code(self) -> int:
        """0 clean, 1 violations, 2 unreadable. A violation that was found counts more than what couldn't be read."""
        if self.findings:
            return EXIT_VIOLATIONS
        return EXIT_UNREADABLE if self.unreadable else EXIT_CLEAN

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {"clean": self.clean, "exit_status": self.exit_code, **found}

    def lines(self) -> Iterable[str]:
        """The report as text for people: verdict first."""
        events = _counted(self.events, "event")
        if self.clean:
            environments = _counted(self.environments, "environment")
            keep = "keeps" if self.events == 1 else "keep"
            yield f"clean: {events} of {environments} {keep} every rule that was checked"
        elif self.findings:
            yield f"{_counted(len(self.findings) + self.findings_left_out, 'violation')} in {events}"
        elif self.events:
            yield f"unreadable: of what could be read ({events}) nothing breaks a rule, but not all could be read"
        else:
            yield "unreadable: not one event could be read"
        for finding in self.findings:
            yield f"  {finding}"
        if self.findings_left_out:
            yield f"  and {self.findings_left_out} more"
        for sentence in self.unreadable:
            yield f"  unreadable: {sentence}"
        for note in self.notes:
            yield f"  note: {note}"
        for checked in self.checked:
            yield f"  {checked.invariant:<4} {checked.rule}: {_looked(checked)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _looked(checked: Checked) -> str:
    """Nothing to look at is no proof, and is told as that."""
    if not checked.looked_at:
        return "there was nothing to look at"
    return f"{checked.looked_at} looked at, " + (f"{checked.violations} broken" if checked.violations else "ok")
