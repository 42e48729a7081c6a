"""The private state of environments, as values, and the fold that gives it from events.

Pure. ``evolve`` is the whole meaning of an environment's events; :mod:`statefork.engine.world` folds a whole journal.

How actions are numbered: ``actions`` is the length of the lineage of the *present content*. An action gets the next
number; a child of a fork goes on from its source; a restore sets the count back to that of the generation restored,
because the later actions are no longer part of what the environment holds. So ``shop#42`` is the 42nd action on the way
from the origin to the present content, found by walking the lineage back from the head (see ``World.lineage``); an
earlier action that once had the same number lies on an abandoned branch, told apart by its generation and its journal
position.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from statefork.engine.errors import UnknownEnvironment
from statefork.engine.transitions import Phase, step
from statefork.journal.events import (
    ActionBegun,
    ActionEnded,
    CommandAnswered,
    EnvironmentActivated,
    EnvironmentCreated,
    EnvironmentForked,
    EnvironmentImported,
    EnvironmentParked,
    EnvironmentRetired,
    Event,
    GenerationMarked,
    GenerationPublished,
    GenerationsPruned,
    Operation,
    PolicyChosen,
    TransitionAborted,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.values import Component, Moment, Value

OPAQUE = "opaque"
"""The type of an action that is recorded as having happened, but not how: a raw page was handed out."""

__all__ = ["OPAQUE", "Capsule", "Chosen", "Generation", "Phase", "Transition", "evolve"]


class Generation(Value, frozen=True, kw_only=True):
    """One published state of an environment, immutable. ``actions``: length of the lineage up to here."""

    env: str
    number: int
    epoch: int
    op: Operation
    contract: str
    manifest: dict[str, Component]
    actions: int
    source: Moment | None
    lost_actions: tuple[int, ...]
    at: float
    opaque: bool = False  # something was done before it that can't be done again: a raw page, an unknown outcome
    forked: bool = False  # children were made of it
    mark: str = ""  # what somebody called it
    pruned: bool = False  # its content is gone, and its manifest is empty

    @property
    def moment(self) -> Moment:
        """Its name."""
        return Moment(env=self.env, generation=self.number)

    @property
    def previous(self) -> Moment | None:
        """The generation whose content this one goes on from; None for an origin (created, cloned or imported)."""
        if self.op in ("create", "clone", "import"):
            return None
        if self.source is not None:
            return self.source
        return Moment(env=self.env, generation=self.number - 1)


class Transition(Value, frozen=True, kw_only=True):
    """A transition that was begun and neither published nor aborted yet."""

    id: str
    op: Operation
    base: int
    source: Moment | None
    at: float


class Chosen(Value, frozen=True, kw_only=True):
    """What somebody chose, in the contract's words; empty: as the contract says. ``at``: since when, 0: from the first.

    What it means is :mod:`statefork.engine.holding`'s to say.
    """

    text: str = ""
    at: float = 0.0


class Capsule(Value, frozen=True, kw_only=True):
    """One environment. ``generation`` 0: nothing was published yet."""

    env: str
    contract: str
    how: str  # create | fork | clone | import
    phase: Phase
    origin: Moment
    parent: Moment | None
    generation: int = 0
    epoch: int = 0
    activation: int = 0  # the last one used
    actions: int = 0  # length of the lineage of the present content, unfinished actions included
    transition: Transition | None = None
    generations: dict[int, Generation] = msgspec.field(default_factory=dict)
    children: tuple[str, ...] = ()
    opaque: bool = False  # since the head something was done that can't be done again
    place: str = ""  # the state directory that has it, where several share the journal
    helps: str = ""  # what it is there for, where it is of use to one command alone
    snapshots: Chosen = Chosen()  # when the present is published by itself
    retention: Chosen = Chosen()  # which generations stay

    @property
    def head(self) -> Generation:
        """The published generation."""
        return self.generations[self.generation]

    @property
    def moment(self) -> Moment:
        """The name of the published generation."""
        return Moment(env=self.env, generation=self.generation)

    @property
    def at_rest(self) -> bool:
        """Whether an engine that begins has nothing to do with it: what was of use to a command ends with that."""
        return self.phase is Phase.RETIRED or (self.phase is Phase.PARKED and not self.helps)

    @property
    def bound(self) -> bool:
        """Whether the environment is in a slot."""
        return self.phase in (Phase.SERVING, Phase.DRAINING, Phase.STAGING)


CONTROL = (
    EnvironmentCreated
    | TransitionBegun
    | TransitionDrained
    | GenerationPublished
    | TransitionAborted
    | EnvironmentForked
    | EnvironmentActivated
    | EnvironmentParked
    | EnvironmentRetired
    | EnvironmentImported
    | CommandAnswered
    | GenerationsPruned
    | GenerationMarked
    | PolicyChosen
)
"""An environment's lifecycle."""

ACTIVITY = ActionBegun | ActionEnded
"""Of an environment's activity, what its private state knows of."""


def evolve(capsule: Capsule | None, event: Event) -> Capsule | None:
    """The environment after one of its events; None where it does not exist (never founded).

    Events that change no control state (actions' ends, refusals, verdicts, …) give back what they got. Raises
    IllegalTransition for an event that the table does not allow, UnknownEnvironment for one of no environment.
    """
    if isinstance(event, ActionBegun):
        known = _known(capsule, event.env)
        return replace(known, actions=event.number, opaque=known.opaque or event.action.get("type") == OPAQUE)
    if isinstance(event, ActionEnded):
        known = _known(capsule, event.env)
        return (
            known if event.outcome != "unknown" or event.generation != known.generation else replace(known, opaque=True)
        )
    if not isinstance(event, CONTROL):
        return capsule
    phase = step(capsule.phase if capsule is not None else Phase.VOID, event)
    match event:
        case EnvironmentCreated():
            return Capsule(
                env=event.env,
                contract=event.contract,
                how=event.how,
                phase=phase,
                origin=event.origin,
                parent=event.parent,
                actions=event.inherited_actions,
                place=event.place,
                helps=event.helps,
            )
        case TransitionBegun():
            begun = Transition(id=event.transition, op=event.op, base=event.base, source=event.source, at=event.at)
            return replace(_known(capsule, event.env), phase=phase, transition=begun)
        case GenerationPublished():
            return _published(_known(capsule, event.env), event, phase)
        case TransitionAborted():
            return None if phase is Phase.VOID else replace(_known(capsule, event.env), phase=phase, transition=None)
        case EnvironmentImported():
            return replace(_known(capsule, event.env), phase=phase, transition=None)
        case EnvironmentActivated():
            return replace(_known(capsule, event.env), phase=phase, activation=event.activation)
        case EnvironmentForked():
            known = _changed(_known(capsule, event.env), event.generation, forked=True)
            return replace(known, children=(*known.children, event.child))
        case GenerationMarked():
            return _changed(_known(capsule, event.env), event.generation, mark=event.mark)
        case GenerationsPruned():
            return _pruned(_known(capsule, event.env), event)
        case PolicyChosen():
            return _chosen(_known(capsule, event.env), event)
        case TransitionDrained() | EnvironmentParked() | EnvironmentRetired() | CommandAnswered():
            return replace(_known(capsule, event.env), phase=phase)


def _known(capsule: Capsule | None, env: str) -> Capsule:
    if capsule is None:
        raise UnknownEnvironment(f"an event speaks of {env}, which does not exist", environment=env)
    return capsule


def _changed(capsule: Capsule, number: int, **changes: object) -> Capsule:
    """With another account of a generation; of one that it does not know (an audit keeps few) nothing is said."""
    known = capsule.generations.get(number)
    if known is None:
        return capsule
    return replace(capsule, generations={**capsule.generations, number: replace(known, **changes)})


def _pruned(capsule: Capsule, event: GenerationsPruned) -> Capsule:
    known = capsule.generations
    going = (known[one.generation] for one in event.pruned if one.generation in known)
    gone = {generation.number: replace(generation, pruned=True, manifest={}) for generation in going}
    return replace(capsule, generations={**known, **gone})


def _chosen(capsule: Capsule, event: PolicyChosen) -> Capsule:
    """What is chosen again holds since it was chosen first."""

    def since(before: Chosen, text: str) -> Chosen:
        return before if before.text == text else Chosen(text=text, at=event.at)

    return replace(
        capsule,
        snapshots=since(capsule.snapshots, event.snapshots),
        retention=since(capsule.retention, event.retention),
    )


def _published(capsule: Capsule, event: GenerationPublished, phase: Phase) -> Capsule:
    generation = Generation(
        env=event.env,
        number=event.generation,
        epoch=event.epoch,
        op=event.op,
        contract=event.contract,
        manifest=event.manifest,
        actions=event.actions,
        source=event.source,
        lost_actions=event.lost_actions,
        at=event.at,
        opaque=phase is Phase.FOUNDING or (event.op == "snapshot" and capsule.opaque),  # an import is not done again
    )
    return replace(
        capsule,
        phase=phase,
        transition=capsule.transition if phase is Phase.FOUNDING else None,  # an import goes on
        generation=event.generation,
        epoch=event.epoch,
        actions=event.actions,
        opaque=False,
        generations={**capsule.generations, event.generation: generation},
    )
