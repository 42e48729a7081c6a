"""What a damage is: one thing done to a true journal, the rule that it breaks, and what the audit must say of it.

    @breaks("I1", "action 1 of a did not end where it began", "generation 1 became 2")
    def ends_on_another_generation(told: Told) -> Event:
        ended = told.one("action.ended", "a", number=1)
        ended["generation"] = 2
        return ended

The function returns the event at which the audit must find it; None for what is found in the journal as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.unit.replay.told import Event, Told

Breaking = Callable[[Told], Event | None]


class Damage(NamedTuple):
    """One entry of a corpus."""

    invariant: str
    words: tuple[str, ...]  # all in one sentence
    break_it: Breaking
    also: frozenset[str]  # other rules that cannot but be broken by it

    @property
    def name(self) -> str:
        return f"{self.invariant}-{self.break_it.__name__}"


CORPUS: list[Damage] = []


def breaks(invariant: str, *words: str, also: str = "") -> Callable[[Breaking], Breaking]:
    """Put a damage into the corpus of a rule."""

    def keep(break_it: Breaking) -> Breaking:
        CORPUS.append(Damage(invariant, words, break_it, frozenset(also.split())))
        return break_it

    return keep
