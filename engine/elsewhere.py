"""What a journal that several state directories share tells an engine of the others: their names, and where they are.

As far as it was read: a name that another engine gives later is found when somebody asks for it, or wants to give it
too. Pure.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from statefork.engine.errors import EnvironmentElsewhere, EnvironmentExists
from statefork.engine.transitions import FOUNDING
from statefork.journal.events import EnvironmentCreated, Event, TransitionAborted


class Elsewhere(msgspec.Struct):
    """The environments of other places, by name, and how people find these places."""

    names: dict[str, str] = {}  # environment -> place
    places: dict[str, str] = {}  # place -> directory and machine

    def note(self, event: Event, place: str) -> bool:
        """Take in an event of an environment that ``place`` does not have; True: the event creates it there."""
        if isinstance(event, EnvironmentCreated):
            if event.place == place:
                self.names.pop(event.env, None)
                return True
            self.names[event.env] = event.place
        elif is_unfounded(event):
            self.names.pop(event.env, None)
        return False

    def text(self, env: str) -> str:
        """Where an environment is, for people."""
        place = self.names[env]
        return f"{self.places[place]} (place {place})" if place in self.places else f"place {place}"

    def check_here(self, env: str) -> None:
        """Raise EnvironmentElsewhere for one that another place is known to have."""
        if env in self.names:
            raise EnvironmentElsewhere(
                f"{env} lives in another state directory of this journal: {self.text(env)}",
                hint="Give the command to the engine there (statefork ls says where each environment lives)",
                **self._facts(env),
            )

    def check_free(self, env: str) -> None:
        """Raise EnvironmentExists for a name that another place is known to have given."""
        if env in self.names:
            raise EnvironmentExists(
                f"the name {env} is taken in this journal, by an environment of {self.text(env)}",
                hint="Choose another: a name is given once in a journal, whoever shares it.",
                **self._facts(env),
            )

    def _facts(self, env: str) -> dict[str, str]:
        place = self.names[env]
        return {"environment": env, "place": place, "where": self.places.get(place, "")}

    def copy(self) -> Elsewhere:
        """What is known now, apart from what will be."""
        return Elsewhere(names=dict(self.names), places=dict(self.places))


def is_unfounded(event: Event) -> TypeGuard[TransitionAborted]:
    """Whether the event ends a founding: the environment never came into being, and its name is free."""
    return isinstance(event, TransitionAborted) and event.op in FOUNDING
