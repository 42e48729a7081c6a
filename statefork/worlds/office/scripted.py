"""Scripted agents for the office's tasks: for each one that does what is asked, and one that does not.

The tasks themselves are data beside this module (``tasks/``), of the form that WebArena's have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment

Way = Literal["right", "wrong"]


class Script(NamedTuple):
    """What an agent does, and what it answers in the end."""

    actions: list[Mapping[str, Any]]
    answer: str

    async def perform(self, env: Environment, filled: Callable[[str], str]) -> str:
        """Act in an environment; the answer. ``filled`` puts addresses for ``__SHOPPING__`` and its like."""
        for action in self.actions:
            await env.act(json.loads(filled(json.dumps(action))))
        return self.answer


def scripts() -> dict[str, dict[Way, Script]]:
    """By task."""
    told = json.loads((files("statefork.worlds.office") / "trajectories.json").read_text(encoding="utf-8"))
    return {task: {way: Script(**script) for way, script in ways.items()} for task, ways in told.items()}
