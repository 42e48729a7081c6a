"""The control state at any position of a journal: its fold up to there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from statefork.engine.world import World
from statefork.journal.log import Reader, Recorded
from statefork.replay.lineage import Past, env_of


async def rebuild(journal: Reader, *, position: int | None = None, place: str | None = None) -> World:
    """The world after the event at ``position`` (None: after the last one); position 0 gives the empty world.

    ``place``: only what that state directory has, where several share the journal; None: all of it. Raises
    JournalCorrupt where the chain does not hold, IllegalTransition where an event may not follow.
    """
    world = World(place=place)
    async for recorded in until(journal, position):
        world.apply(recorded.event, recorded)
    return world


async def until(journal: Reader, position: int | None) -> AsyncIterator[Recorded]:
    """The events up to a position, that one included."""
    if position == 0:
        return
    async for recorded in journal.read(limit=position):
        yield recorded


def differences(live: World, rebuilt: World) -> tuple[str, ...]:
    """What a live world holds that the fold of its journal does not say, a sentence each; empty when they are equal."""
    return tuple(_differences(live, rebuilt))


def _differences(live: World, rebuilt: World) -> Iterator[str]:
    if live.journal != rebuilt.journal:
        yield f"the journal is {live.journal} live, {rebuilt.journal} rebuilt"
    for what in ("environments", "contracts", "bases", "versions"):
        mine: dict[str, Any] = getattr(live, what)
        told: dict[str, Any] = getattr(rebuilt, what)
        for name in sorted(mine.keys() | told.keys()):
            if mine.get(name) != told.get(name):
                yield f"{what}: {name} is {mine.get(name)!r} live, {told.get(name)!r} rebuilt"


async def pasts_of(journal: Reader, env: str) -> dict[str, Past]:
    """The pasts of an environment and of all that its lineage leads through. Reads their streams only."""
    found: dict[str, Past] = {}
    wanted = [env]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        past = Past(name)
        for stream in (f"env/{name}", f"act/{name}"):
            async for recorded in journal.read(stream=stream):
                if env_of(recorded.event) == name:
                    past.note(recorded)
        if past.head:
            found[name] = past
            wanted += sorted(past.parents)
    return found
