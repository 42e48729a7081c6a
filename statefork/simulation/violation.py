"""A broken rule, as the simulation reports it."""

from __future__ import annotations

RULES = {
    "I1": "one generation per operation",
    "I2": "root leases are granted only on the published generation, never between freeze and publish",
    "I3": "no publish while something on the old generation runs",
    "I4": "a manifest names every resource exactly once",
    "I5": "publish is one atomic append; what it says is so, before and after a crash",
    "I6": "no writable branch is shared, no sealed version is written",
    "I7": "a ticket of another epoch or activation is refused",
    "I8": "ready means bound and probed",
    "I9": "a failed transition leaves the old generation serving, and nothing behind",
    "I10": "the fold of the journal is the live state",
    "I11": "what the journal does not reach is collected, and nothing else is",
    "state": "every store holds exactly what was written into its environment since its origin",
    "cut": "a snapshot is the content of one moment",
    "answer": "what a command answers is so",
    "outcome": "an action's recorded outcome is what became of it",
    "slots": "no more environments are bound than there are slots; pinned ones stay",
    "fairness": "waiters are served in order of arrival, or end at their deadline",
    "wake-up": "nobody waits for what is there already",
    "deadline": "nothing goes on after its deadline",
    "errors": "only those errors come that somebody has cause for",
    "audit": "the independent audit of the journal is clean",
    "progress": "everything ends",
    "assertion": "the engine's own assertions hold",
    "raised": "nothing is raised but statefork's own errors",
}
"""What is checked. I1 to I11 as in the architecture; the others are the simulation's own."""


class Violation(AssertionError):
    """``rule``: which of :data:`RULES` is broken."""

    def __init__(self, rule: str, message: str) -> None:
        assert rule in RULES, rule
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def rule_of(error: AssertionError) -> str:
    """The rule that an assertion is about: the engine's own name theirs in front."""
    if isinstance(error, Violation):
        return error.rule
    name, found, _ = str(error).partition(":")
    return name if found and name in RULES else "assertion"
