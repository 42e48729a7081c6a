"""Snapshot policies: when an engine publishes the present by itself, so that any moment is near a sealed one.

=====================  ======================================================
``on demand``          only when somebody asks (the default)
``every action``       after each action
``every 5 actions``    as soon as 5 actions followed the last generation
``when changed``       after each action that left something written
=====================  ======================================================

A moment without a generation can be made all the same, by carrying out the actions since the nearest one again: a
policy says how many those are, and whether the moment's own content is kept as evidence.
"""

from __future__ import annotations

import re

from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Value

FORMS = "'on demand', 'every action', 'every 5 actions' or 'when changed'"
EVERY_MAX = 1_000_000
_EVERY = re.compile(r"every (?:action|([1-9][0-9]{0,6}) actions)")

DRAIN = DrainPolicy(deadline_s=1.0, then="abort", hold_s=10.0)
"""An agent that acts meanwhile waits for the snapshot; one that is in the middle of an action is not disturbed."""


class SnapshotPolicy(Value, frozen=True, kw_only=True):
    """``every``: actions after which the present is published, 0: never; ``changed``: only where something changed."""

    every: int = 0
    changed: bool = False

    def __str__(self) -> str:
        if self.changed:
            return "when changed"
        return {0: "on demand", 1: "every action"}.get(self.every, f"every {self.every} actions")

    def due(self, actions: int) -> bool:
        """Whether the present is to be published, so many actions after the last generation."""
        return 0 < self.every <= actions


ON_DEMAND = SnapshotPolicy()


class Choice(Value, frozen=True, kw_only=True):
    """What somebody wants of one environment, in the contract's words. Empty: as the contract says; None: as it is."""

    snapshots: str | None = None
    retention: str | None = None

    def __bool__(self) -> bool:
        return self.snapshots is not None or self.retention is not None

    def words(self) -> tuple[str, ...]:
        """As a part of a command in words; nothing where nothing is wanted."""
        named = (("snapshots", self.snapshots), ("retention", self.retention))
        return tuple(f"{name}={text or 'contract'}" for name, text in named if text is not None)


AS_IT_IS = Choice()


def parse_policy(text: object) -> SnapshotPolicy | None:
    """The policy that a text means; None where it means none."""
    if text == "on demand":
        return ON_DEMAND
    if text == "when changed":
        return SnapshotPolicy(every=1, changed=True)
    found = _EVERY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    every = int(found[1] or 1)
    return SnapshotPolicy(every=every) if every <= EVERY_MAX else None
