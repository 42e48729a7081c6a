"""What a re-execution is told: what to do, step by step, and nothing of what was seen when it was first done.

The types are the wall: a :class:`Script` is made of actions and inputs only, the executor takes a script and a stage,
and neither has a field that could hold a recorded observation. Comparing is done elsewhere, by the one who holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from statefork.journal.values import Conditions, Json, Observation

LEFT_OUT = "(left out of the export)"
"""Stands in the place of a header that opened something outside, where a trajectory came from another machine."""


class Do(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out an action."""

    number: int
    action: dict[str, Json]
    conditions: Conditions | None = None


class Give(msgspec.Struct, frozen=True, kw_only=True):
    """Send a request that came from outside, with its body."""

    after: int
    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""
    conditions: Conditions | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.method} {self.url} (after action {self.after})"


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can't be done again, and why."""

    name: str
    why: str


Cue = Do | Give | Skip


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an executor gets to know."""

    cues: tuple[Cue, ...]


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """How a cue went this time."""

    outcome: Literal["ok", "failed", "unknown", "skipped"]
    error: str = ""
    observation: Observation | None = None
    status: int = 0
    missed: tuple[str, ...] = ()  # what pages asked of hosts outside that was not asked when it was recorded


class Stage(Protocol):
    """The environment in which a script is carried out."""

    async def act(self, action: Mapping[str, Json], conditions: Conditions | None = None) -> Played:
        """Carry out an action under these conditions, and observe."""
        ...

    async def give(self, cue: Give) -> Played:
        """Send a request through the environment's private door; ``skipped`` where that is impossible."""
        ...


class Executor:
    """Carries out a script, one cue at a time: who drives it may stop between two."""

    def __init__(self, script: Script, stage: Stage) -> None:
        self._cues = iter(script.cues)
        self._stage = stage

    async def step(self) -> Played | None:
        """Carry out the next cue; None when there is none left."""
        cue = next(self._cues, None)
        match cue:
            case None:
                return None
            case Do():
                return await self._stage.act(cue.action, cue.conditions)
            case Give():
                return await self._stage.give(cue)
            case Skip():
                return Played(outcome="skipped", error=cue.why)
