"""Retention: which generations of an environment stay, and which may go because they can be made again.

===================  ==========================================================================
``all``              nothing goes (the default)
``last 20``          the newest 20 stay
``forks and marks``  those that children were made of, and those that somebody marked, stay
===================  ==========================================================================

Under every policy the first and the newest generation stay, those that are marked, those that were restored from
another environment, those of which a command with a key still makes something (until it is repeated to its end), and
those that can't be made again: before them something was done of which nobody recorded how it is done (a raw page, an
action whose outcome is unknown), or they were imported. So every generation that goes has an earlier one of the same
environment, from which the recorded actions lead to it, and what others let go changes nothing of that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from statefork.engine.capsule import Capsule, Generation
from statefork.engine.world import World
from statefork.journal.values import Pruned, Value

FORMS = "'all', 'last 20' or 'forks and marks'"
LAST_MAX = 1_000_000
MARK_LENGTH_MAX = 200
_LAST = re.compile(r"last ([1-9][0-9]{0,6})")


class Retention(Value, frozen=True, kw_only=True):
    """``last``: how many of the newest stay; ``forked``: those that children were made of stay. Neither: all stay."""

    last: int = 0
    forked: bool = False

    def __str__(self) -> str:
        if self.forked:
            return "forks and marks"
        return f"last {self.last}" if self.last else "all"


KEEP_ALL = Retention()


def parse_retention(text: object) -> Retention | None:
    """The retention that a text means; None where it means none."""
    if text == "all":
        return KEEP_ALL
    if text == "forks and marks":
        return Retention(forked=True)
    found = _LAST.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) > LAST_MAX:
        return None
    return Retention(last=int(found[1]))


def prunable(
    capsule: Capsule, retention: Retention, wanted: Collection[int] = (), *, coming: int = 0
) -> tuple[int, ...]:
    """The generations that may go, oldest first. ``coming``: how many are about to be published after the head.

    ``wanted``: those of which a command with a key has still something to make.
    """
    if retention == KEEP_ALL or not capsule.generations:
        return ()
    head = capsule.generation + coming
    newest = head - max(retention.last, 1)  # those above it stay
    return tuple(
        number
        for number, one in capsule.generations.items()
        if 1 < number <= newest and number not in wanted and _may_go(one) and not (retention.forked and one.forked)
    )


def _may_go(generation: Generation) -> bool:
    elsewhere = generation.source is not None and generation.source.env != generation.env
    return not (generation.pruned or generation.mark or generation.opaque or elsewhere)


def pruned(world: World, capsule: Capsule, going: Collection[int]) -> Iterator[Pruned]:
    """Of each that goes, the nearest generation that stays, and how many actions lead from there."""
    for number in going:
        gone = capsule.generations[number]
        way = world.lineage(gone.moment)
        next(way)
        kept = next(one for one in way if not one.pruned and not (one.env == capsule.env and one.number in going))
        yield Pruned(generation=number, nearest=kept.moment, actions=gone.actions - kept.actions)
