"""The private state of environments, as values, and the fold that gives it from events.

Pure. ``evolve`` is the whole meaning of an environment's events; :class:`World` is the fold of a journal (I10: it is
exactly the live control state of the engine that writes that journal).

How actions are numbered: ``actions`` is the length of the lineage of the *present content*. An action gets the next
number; a child of a fork goes on from its source; a restore sets the count back to that of the generation restored,
because the later actions are no longer part of what the environment holds. So ``shop#42`` is the 42nd action on the way
from the origin to the present content, found by walking :meth:`World.lineage` back from the head; an earlier action
that once had the same number lies on an abandoned branch, told apart by its generation and its journal position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

import msgspec
from msgspec.structs import replace

from statefork.engine.capsules import Capsules, Packing
from statefork.engine.errors import UnknownEnvironment, UnknownRef
from statefork.engine.transitions import Phase, step
from statefork.journal.events import (
    ActionBegun,
    BaseProvisioned,
    CommandAnswered,
    ContractRegistered,
    EngineStarted,
    EnvironmentActivated,
    EnvironmentCreated,
    EnvironmentForked,
    EnvironmentParked,
    EnvironmentRetired,
    Event,
    GenerationPublished,
    JournalCreated,
    Operation,
    TransitionAborted,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.values import Component, Moment, Value

__all__ = ["Answered", "Capsule", "Generation", "Phase", "Transition", "World", "evolve"]


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

    @property
    def moment(self) -> Moment:
        """Its name."""
        return Moment(env=self.env, generation=self.number)

    @property
    def previous(self) -> Moment | None:
        """The generation whose content this one goes on from; None for an origin (created or cloned)."""
        if self.op in ("create", "clone"):
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


class Capsule(Value, frozen=True, kw_only=True):
    """One environment. ``generation`` 0: nothing was published yet."""

    env: str
    contract: str
    how: str  # create | fork | clone
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

    @property
    def head(self) -> Generation:
        """The published generation."""
        return self.generations[self.generation]

    @property
    def moment(self) -> Moment:
        """The name of the published generation."""
        return Moment(env=self.env, generation=self.generation)

    @property
    def bound(self) -> bool:
        """Whether the environment is in a slot."""
        return self.phase in (Phase.SERVING, Phase.DRAINING, Phase.STAGING)


_CONTROL = (
    EnvironmentCreated
    | TransitionBegun
    | TransitionDrained
    | GenerationPublished
    | TransitionAborted
    | EnvironmentForked
    | EnvironmentActivated
    | EnvironmentParked
    | EnvironmentRetired
    | CommandAnswered
)
_OF_ENVIRONMENT = ActionBegun | _CONTROL
_FOLDED = frozenset(get_args(_OF_ENVIRONMENT | JournalCreated | EngineStarted | ContractRegistered | BaseProvisioned))


def evolve(capsule: Capsule | None, event: Event) -> Capsule | None:
    """The environment after one of its events; None where it does not exist (never founded).

    Events that change no control state (actions' ends, refusals, verdicts, …) give back what they got. Raises
    IllegalTransition for an event that the table does not allow, UnknownEnvironment for one of no environment.
    """
    if isinstance(event, ActionBegun):
        known = _known(capsule, event.env)
        return replace(known, actions=event.number)
    if not isinstance(event, _CONTROL):
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
            )
        case TransitionBegun():
            begun = Transition(id=event.transition, op=event.op, base=event.base, source=event.source, at=event.at)
            return replace(_known(capsule, event.env), phase=phase, transition=begun)
        case GenerationPublished():
            return _published(_known(capsule, event.env), event, phase)
        case TransitionAborted():
            return None if phase is Phase.VOID else replace(_known(capsule, event.env), phase=phase, transition=None)
        case EnvironmentActivated():
            return replace(_known(capsule, event.env), phase=phase, activation=event.activation)
        case EnvironmentForked():
            known = _known(capsule, event.env)
            return replace(known, children=(*known.children, event.child))
        case TransitionDrained() | EnvironmentParked() | EnvironmentRetired() | CommandAnswered():
            return replace(_known(capsule, event.env), phase=phase)


def _known(capsule: Capsule | None, env: str) -> Capsule:
    if capsule is None:
        raise UnknownEnvironment(f"an event speaks of {env}, which does not exist", environment=env)
    return capsule


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
    )
    return replace(
        capsule,
        phase=phase,
        transition=None,
        generation=event.generation,
        epoch=event.epoch,
        actions=event.actions,
        generations={**capsule.generations, event.generation: generation},
    )


class Answered(Value, frozen=True, kw_only=True):
    """What a command with a key has led to, by part (0: as a whole). ``request``: the command in words."""

    request: str
    parts: dict[int, Moment]


class Image(Value, frozen=True, kw_only=True):
    """A world as it can be kept: see :meth:`World.image`. ``packed`` is empty for a name that founded nothing."""

    journal: str
    runs: int
    contracts: dict[str, ContractRegistered]
    provisioned: list[dict[str, Component]]
    bases: dict[str, int]  # contract digest -> its place in ``provisioned``
    names: list[str]
    versions: list[int]
    packed: list[bytes]
    awake: tuple[str, ...]
    answers: dict[str, Answered]


class World:
    """The fold of a whole journal: every environment, contract and base. Mutable only by ``apply``.

    ``warm``: how many environments at rest stay unpacked (see :mod:`statefork.engine.capsules`); None: all do.
    """

    def __init__(self, *, warm: int | None = None) -> None:
        self.journal = ""
        self.runs = 0
        self.provisioned: list[dict[str, Component]] = []  # every base there ever was, in journal order
        self.environments = Capsules(Packing(Capsule, self.provisioned), warm)
        self.versions: dict[str, int] = {}  # environment -> number of events in its control stream
        self.contracts: dict[str, ContractRegistered] = {}
        self.bases: dict[str, dict[str, Component]] = {}  # contract digest -> manifest
        self.answers: dict[str, Answered] = {}  # by key

    def apply(self, event: Event) -> None:
        """Take one event into account, in journal order."""
        if type(event) not in _FOLDED:
            return  # most events tell what was done and change nothing here
        if isinstance(event, _OF_ENVIRONMENT):
            env = event.env
            after = evolve(self.environments.get(env), event)
            if after is None:
                self.environments.pop(env)
            else:
                self.environments[env] = after
            if not isinstance(event, ActionBegun):
                self.versions[env] = self.versions.get(env, 0) + 1
            if isinstance(event, CommandAnswered):
                before = self.answers.get(event.key)
                parts = {
                    **(before.parts if before is not None else {}),
                    event.part: Moment(env=env, generation=event.generation),
                }
                self.answers[event.key] = Answered(
                    request=before.request if before is not None else event.request, parts=parts
                )
            return
        match event:
            case JournalCreated():
                self.journal = event.journal
            case EngineStarted():
                self.runs += 1
            case ContractRegistered():
                self.contracts[event.digest] = event
            case BaseProvisioned():
                self.bases[event.contract] = event.manifest
                self.provisioned.append(event.manifest)
            case _:
                pass

    def image(self) -> Image:
        """This world at this moment; what happens to it later does not change the image."""
        packed = self.environments.packed()
        return Image(
            journal=self.journal,
            runs=self.runs,
            contracts=dict(self.contracts),
            provisioned=list(self.provisioned),
            bases={digest: self.provisioned.index(manifest) for digest, manifest in self.bases.items()},
            names=list(self.versions),
            versions=list(self.versions.values()),
            packed=[packed.get(env, b"") for env in self.versions],
            awake=self.environments.awake,
            answers=dict(self.answers),
        )

    @classmethod
    def of(cls, image: Image, *, warm: int | None = None) -> World:
        """The world that an image was made of. Raises what comes of bytes that are no image."""
        world = cls(warm=warm)
        world.journal, world.runs = image.journal, image.runs
        world.contracts = image.contracts
        world.provisioned.extend(image.provisioned)
        world.bases = {digest: image.provisioned[place] for digest, place in image.bases.items()}
        world.versions = dict(zip(image.names, image.versions, strict=True))
        packed = {env: data for env, data in zip(image.names, image.packed, strict=True) if data}
        world.environments.fill(packed, image.awake)
        world.answers = image.answers
        return world

    def capsule(self, env: str) -> Capsule:
        """Raises UnknownEnvironment."""
        found = self.environments.get(env)
        if found is None:
            raise UnknownEnvironment(
                f"there is no environment {env}", hint="`statefork ls` lists them.", environment=env
            )
        return found

    def generation(self, moment: Moment) -> Generation:
        """A published generation. Raises UnknownRef."""
        capsule = self.environments.get(moment.env)
        found = capsule.generations.get(moment.generation) if capsule is not None else None
        if found is None:
            raise UnknownRef(
                f"{moment} was never published in this journal", environment=moment.env, generation=moment.generation
            )
        return found

    def lineage(self, moment: Moment) -> Iterator[Generation]:
        """The generations on the way from a moment back to its origin, the moment's own first. Raises UnknownRef."""
        at: Moment | None = moment
        while at is not None:
            generation = self.generation(at)
            yield generation
            at = generation.previous

    def unreached(self, versions: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of these (resource, version) that neither a generation nor the present base of a contract names."""
        left = set(versions)
        for manifest in self._manifests() if left else ():
            left.difference_update((name, component.sealed.version) for name, component in manifest.items())
            if not left:
                break
        return left

    def reachable(self) -> frozenset[tuple[str, str]]:
        """(resource, version) of every sealed version that a generation or a base names."""
        return frozenset(
            (name, component.sealed.version) for manifest in self._manifests() for name, component in manifest.items()
        )

    def _manifests(self) -> Iterator[Mapping[str, Component]]:
        yield from self.bases.values()
        for capsule in self.environments.values():
            for generation in capsule.generations.values():
                yield generation.manifest
