"""The way to a moment: what was done and seen from the origin to there, and the generations that stand on it."""

from __future__ import annotations

from collections.abc import Mapping

from statefork.engine.errors import UnknownRef
from statefork.engine.refs import Ref, nearest
from statefork.engine.world import World
from statefork.journal.values import Moment
from statefork.replay.lineage import (
    Act,
    Past,
    Step,
    Trajectory,
    Witnessed,
    actions_after,
    steps_after,
    steps_to,
    too_far,
)

NAVIGATION = "goto"
"""The action that loads a page anew: what its scripts held before is gone, in every environment alike."""


class Way:
    """One moment, and everything that led there."""

    def __init__(self, ref: Ref, world: World, known: Mapping[str, Past]) -> None:
        """Raises UnknownRef where the moment never was."""
        self.ref = ref
        self.known = known
        standing = nearest(ref, world.environments)
        self.nearest = standing.moment
        """The last generation at or before the moment whose content is kept."""
        self._world = world
        self.actions = world.generation(self.nearest).actions + standing.after
        """Lineage number of the moment."""
        last = standing.pruned or self.nearest
        after = self.actions - world.generation(last).actions
        self._steps = [*steps_to(known, last), *self._tail(last, after)]

    def _tail(self, last: Moment, after: int) -> list[tuple[Step, Witnessed]]:
        if self.ref.is_now:  # with what came from outside after the last action
            return self.known[last.env].tail(last.generation)
        if self.ref.generation is not None and self.ref.plus:  # told from where it was counted
            start = Moment(env=self.ref.env, generation=self.ref.generation)
            if self.ref.plus > (have := actions_after(self.known, start)):
                raise too_far(start, have, self.ref.plus)
        return steps_after(self.known, last, after) if after else []

    @property
    def stands(self) -> bool:
        """Whether the nearest generation is the moment itself."""
        return len(self._steps) == len(steps_to(self.known, self.nearest))

    @property
    def origin(self) -> Moment:
        """Where it begins."""
        *_, first = self._world.lineage(self.nearest)
        return first.moment

    def before(self, ref: Ref) -> Moment:
        """The generation at or before another moment of this way. Raises UnknownRef where that is none of it."""
        start = nearest(ref, self._world.environments).moment
        if any(generation.moment == start for generation in self._world.lineage(self.nearest)):
            return start
        raise UnknownRef(
            f"{ref} does not lie on the way to {self.ref}",
            hint=f"`statefork show {self.ref.env}` tells the generations that do",
            ref=str(ref),
        )

    def rest(self, start: Moment) -> list[tuple[Step, Witnessed]]:
        """The steps from a generation on the way to the moment."""
        return self._steps[len(steps_to(self.known, start)) :]

    def beyond(self, earlier: Way) -> list[tuple[Step, Witnessed]] | None:
        """The steps from another moment to this one; None where that does not lie on the way."""
        done = len(earlier._steps)
        return self._steps[done:] if self._steps[:done] == earlier._steps else None

    def goes_on_from(self, earlier: Way) -> bool:
        """Whether another moment lies on the way, and all steps from there are known, and can be done again.

        Of others the outcome may be held by a generation that was published after them, and by nothing else.
        """
        steps = self.beyond(earlier)
        return steps is not None and all(
            witnessed.outcome != "unknown" and not (isinstance(step, Act) and step.opaque) for step, witnessed in steps
        )

    def recording(self, start: Moment, rest: list[tuple[Step, Witnessed]] | None = None) -> Trajectory:
        """What was done and seen from a generation on the way to the moment, or the last steps of that."""
        rest = self.rest(start) if rest is None else rest
        return Trajectory(
            env=self.ref.env,
            generation=start.generation,
            origin=start,
            contract=self._world.generation(start).contract,
            steps=tuple(step for step, _ in rest),
            witnessed=tuple(witnessed for _, witnessed in rest),
        )

    def before_the_page(self, start: Moment) -> Moment | None:
        """The last generation from before the navigation that loaded the page of ``start``; None: there is none."""
        loaded = _last_navigation(steps_to(self.known, start))
        earlier = (
            one
            for one in self._world.lineage(start)
            if one.moment != start and one.actions < max(loaded, 1) and not one.pruned
        )
        found = next(earlier, None)
        return found.moment if found is not None else None


def _last_navigation(steps: list[tuple[Step, Witnessed]]) -> int:
    """The lineage number of the last action that loaded a page; 0: there was none."""
    acts = (step for step, _ in reversed(steps) if isinstance(step, Act))
    return next((act.number for act in acts if act.action.get("type") == NAVIGATION), 0)
