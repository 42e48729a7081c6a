"""The fold of a journal: every environment, contract and base. Pure (I10: it is exactly the live control state)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from statefork.engine.capsule import ACTIVITY, CONTROL, Capsule, Generation, evolve
from statefork.engine.capsules import Capsules, Packing
from statefork.engine.elsewhere import Elsewhere, is_unfounded
from statefork.engine.errors import GenerationPruned, UnknownEnvironment, UnknownRef
from statefork.journal.events import (
    ActionEnded,
    BaseProvisioned,
    CommandAnswered,
    ContractRegistered,
    EngineStarted,
    Event,
    JournalCreated,
    place_of,
)
from statefork.journal.log import Recorded
from statefork.journal.values import Component, Moment, Value

_OF_ENVIRONMENT = ACTIVITY | CONTROL
_FOLDED = frozenset(get_args(_OF_ENVIRONMENT | JournalCreated | EngineStarted | ContractRegistered | BaseProvisioned))


class Answered(Value, frozen=True, kw_only=True):
    """What a command with a key has led to, by part (0: as a whole). ``request``: the command in words.

    ``source``: what its other parts are made of, until all ``of`` them are there.
    """

    request: str
    parts: dict[int, Moment]
    source: Moment | None = None
    of: int = 0


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
    unfinished: dict[str, Moment]
    place: str
    elsewhere: Elsewhere


class World:
    """The fold of a journal: every environment, contract and base. Mutable only by ``apply`` and ``learn``.

    ``place``: of a shared journal only what one state directory has, and of the others the names; None: all of it.
    ``warm``: how many environments at rest stay unpacked (see :mod:`statefork.engine.capsules`); None: all do.
    """

    def __init__(self, *, place: str | None = None, warm: int | None = None) -> None:
        self.place = place
        self.elsewhere = Elsewhere()
        self.journal = ""
        self.runs = 0
        self.provisioned: list[dict[str, Component]] = []  # every base there ever was, in journal order
        self.environments = Capsules(Packing(Capsule, self.provisioned), warm)
        self.versions: dict[str, int] = {}  # environment -> number of events in its control stream
        self.contracts: dict[str, ContractRegistered] = {}
        self.bases: dict[str, dict[str, Component]] = {}  # contract digest -> manifest
        self.answers: dict[str, Answered] = {}  # by key
        self.unfinished: dict[str, Moment] = {}  # by key, of commands that are not done: what the rest is made of

    def apply(self, event: Event, at: Recorded | None = None) -> None:
        """Take one event into account, in journal order. ``at``: where it stands; None: it is this place's newest."""
        if type(event) not in _FOLDED:
            return  # most events tell what was done and change nothing here
        if isinstance(event, ActionEnded) and event.outcome != "unknown":
            return  # the most frequent of all
        if isinstance(event, _OF_ENVIRONMENT):
            if self._is_own(event):
                self._of_environment(event, at)
            return
        place = self.place or "" if at is None else place_of(at.stream)
        own = self.place in (None, place)
        match event:
            case JournalCreated():
                self.journal = event.journal
            case EngineStarted():
                self.runs += own
                if event.where:
                    self.elsewhere.places[place] = event.where
            case ContractRegistered():
                self.contracts[event.digest] = event
            case BaseProvisioned() if own:
                self.bases[event.contract] = event.manifest
                self.provisioned.append(event.manifest)
            case _:
                pass

    def _of_environment(self, event: _OF_ENVIRONMENT, at: Recorded | None) -> None:
        env = event.env
        after = evolve(self.environments.get(env), event)
        if after is None:
            self.environments.pop(env)
        else:
            self.environments[env] = after
        if not isinstance(event, ACTIVITY):
            # others may have used the name before, in vain
            self.versions[env] = self.versions.get(env, 0) + 1 if at is None else at.version
        if isinstance(event, CommandAnswered):
            self._answered(event)

    def _answered(self, event: CommandAnswered) -> None:
        moment = Moment(env=event.env, generation=event.generation)
        before = self.answers.get(event.key) or Answered(request=event.request, parts={})
        parts = {**before.parts, event.part: moment}
        source, of = (moment, event.of) if event.of else (before.source, before.of)
        if len(parts) >= of:
            source = None
        self.answers[event.key] = Answered(request=before.request, parts=parts, source=source, of=of)
        if source is not None:
            self.unfinished[event.key] = source
        else:
            self.unfinished.pop(event.key, None)

    def wanted(self, env: str) -> frozenset[int]:
        """The generations of an environment of which commands with a key have still something to make."""
        return frozenset(source.generation for source in self.unfinished.values() if source.env == env)

    def _is_own(self, event: _OF_ENVIRONMENT) -> bool:
        if self.place is None or event.env in self.environments:
            return True
        # in a journal of its own nothing is anybody else's: what does not fit is an error
        return self.elsewhere.note(event, self.place) or not self.place

    def learn(self, env: str, events: Sequence[Event]) -> bool:
        """Take in the control stream of a name that no environment here has. False: this place has it after all."""
        assert self.place is not None
        own = False
        for event in events:
            own = self.elsewhere.note(event, self.place) or (own and not is_unfounded(event))
        self.versions[env] = len(events)
        return not own

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
            unfinished=dict(self.unfinished),
            place=self.place or "",
            elsewhere=self.elsewhere.copy(),
        )

    @classmethod
    def of(cls, image: Image, *, place: str | None = None, warm: int | None = None) -> World:
        """The world that an image was made of. Raises what comes of bytes that are no image."""
        world = cls(place=place, warm=warm)
        world.elsewhere = image.elsewhere
        world.journal, world.runs = image.journal, image.runs
        world.contracts = image.contracts
        world.provisioned.extend(image.provisioned)
        world.bases = {digest: image.provisioned[place] for digest, place in image.bases.items()}
        world.versions = dict(zip(image.names, image.versions, strict=True))
        packed = {env: data for env, data in zip(image.names, image.packed, strict=True) if data}
        world.environments.fill(packed, image.awake)
        world.answers = image.answers
        world.unfinished = image.unfinished
        return world

    def capsule(self, env: str) -> Capsule:
        """Raises UnknownEnvironment."""
        found = self.environments.get(env)
        if found is None:
            self.elsewhere.check_here(env)
            raise UnknownEnvironment(
                f"there is no environment {env}", hint="`statefork ls` lists them.", environment=env
            )
        return found

    def generation(self, moment: Moment) -> Generation:
        """A published generation. Raises UnknownRef."""
        capsule = self.environments.get(moment.env)
        found = capsule.generations.get(moment.generation) if capsule is not None else None
        if found is None:
            self.elsewhere.check_here(moment.env)
            raise UnknownRef(
                f"{moment} was never published in this journal", environment=moment.env, generation=moment.generation
            )
        return found

    def kept(self, moment: Moment) -> Generation:
        """A published generation whose content is there. Raises UnknownRef, GenerationPruned."""
        found = self.generation(moment)
        if found.pruned:
            raise GenerationPruned(
                f"the content of {moment} was pruned",
                hint=f"Fork {moment} by its name: it is made again from the nearest generation that was kept.",
                environment=moment.env,
                generation=moment.generation,
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
                yield generation.manifest  # empty where it was pruned
