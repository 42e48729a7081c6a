"""What must be so, kept outside the engine.

For each environment the content that its stores must have at this moment. It changes at two kinds of instant: when the
simulated world is really written, and when an event is really in the journal. Both are told here synchronously, so
there is nothing to guess: a store that differs from the truth was mixed up, torn, lost or leaked, whatever the engine
believes. Every value written is a *witness*: it says by which environment, in which epoch and by whom it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from statefork.engine.capsule import Phase
from statefork.engine.kernel import Kernel
from statefork.engine.leases import Lease, current_lease
from statefork.journal.codec import Codec
from statefork.journal.events import (
    EnvironmentActivated,
    EnvironmentCreated,
    EnvironmentForked,
    EnvironmentParked,
    EnvironmentRetired,
    Event,
    GenerationMarked,
    GenerationPublished,
    GenerationsPruned,
    PolicyChosen,
    TransitionAborted,
    TransitionBegun,
)
from statefork.journal.values import Branch, Handle, Identity, Json, Moment, Sealed
from statefork.simulation.lying import LyingWorld
from statefork.simulation.model import Content, Holder, Model, Witness, copied
from statefork.simulation.violation import Violation

_SWITCHING = ("reset", "restore")
_ALOOF = ("daemon", "job", "straggler")  # who may still write where nothing is served any more


class Truth:
    """The models of all environments, and the content of every published generation."""

    def __init__(self, world: LyingWorld, stores: tuple[str, ...], resources: frozenset[str], slots: int) -> None:
        self.world = world
        self.stores = stores
        self.models: dict[str, Model] = {}
        self.published: dict[str, Content] = {}  # moment -> content
        self.ops: dict[str, str] = {}  # moment -> the operation that published it
        self.needs: dict[str, frozenset[tuple[str, str]]] = {}  # moment that was not pruned -> (resource, version)
        self.reached: Counter[tuple[str, str]] = Counter()  # how many of them need a version
        self.marks: set[str] = set()  # moments that bear one
        self.written: set[int] = set()  # numbers of the witnesses that reached an environment
        self.found: list[Violation] = []
        self.position = 0  # in the journal, up to which everything is known
        self._resources = resources
        self._slots = slots
        self._codec = Codec()
        self._base: Content = {store: {"greeting": f"hello from {store}"} for store in stores}
        world.on_write = self.on_write

    def fail(self, rule: str, message: str) -> None:
        """A rule is broken. Kept also where the engine catches what is raised in it."""
        violation = Violation(rule, message)
        self.found.append(violation)
        raise violation

    def require(self, condition: bool, rule: str, message: str) -> None:
        """Fail unless it is so."""
        if not condition:
            self.fail(rule, message)

    # --- what the world tells ---------------------------------------------------------------------------------------

    def on_write(self, branch: str, key: str, value: Json) -> None:
        """A branch was written, this instant."""
        self.catch_up()
        witness = Witness.read(value)
        if witness is None:
            return  # a page that is loaded: what it writes is rewound before anybody sees it
        namespace = self.world.branches[branch]
        identity = self.world.identities.get(branch)
        if identity is None or not identity.env == namespace.handle.env == witness.env:
            self.fail("I6", f"{witness} was written into {branch}, which is {namespace.handle.env}'s ({identity})")
        model = self.models.get(witness.env)
        if model is None or not self.is_used(branch):
            if witness.by not in _ALOOF:
                self.fail("I3", f"{witness} was written on {identity}, and {model and model.identity} is what serves")
            return
        if namespace.quiesced:
            self.fail("cut", f"{witness} was written into {branch} while it was quiesced")
        model.content[namespace.handle.resource][key] = value
        self.written.add(witness.number)
        model.changed()

    def on_discard(self, journal: str, handle: Handle) -> None:
        """Something is about to be discarded."""
        self.catch_up()
        if handle.journal != journal:
            self.fail("I11", f"{handle} of another journal was to be discarded")
        if isinstance(handle, Sealed):
            if (handle.resource, handle.version) in self.reached:
                self.fail("I11", f"{handle.version} was to be discarded, and a published generation needs it")
            return
        branch = handle.id if isinstance(handle, Branch) else handle.branch
        if self.is_used(branch):
            self.fail("I11", f"{handle} was to be discarded while it serves")

    def is_used(self, branch: str) -> bool:
        """Whether an environment that serves has this branch."""
        identity = self.world.identities.get(branch)
        model = self.models.get(identity.env) if identity is not None else None
        if identity is None or model is None or not model.serves(identity):
            return False
        return self.world.newest[branch.partition("-")[0], identity] == branch

    # --- what the journal tells -------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take the events into account that are in the journal and not known yet."""
        rows = self.world.disk.rows
        while self.position < len(rows):
            row = rows[self.position]
            self.position += 1
            if row.stream.startswith("env/"):
                self.apply(self._codec.decode(row.event, position=row.position))

    def apply(self, event: Event) -> None:
        """One event of an environment's life."""
        match event:
            case EnvironmentCreated():
                self.require(event.env not in self.models, "I5", f"{event.env} was created twice")
                self.models[event.env] = Model(event.env, self._origin(event))
            case TransitionBegun():
                self._begun(self.models[event.env], event)
            case TransitionAborted():
                self.aborted(event)
            case GenerationPublished():
                self._published(self.models[event.env], event)
            case EnvironmentActivated():
                self._activated(self.models[event.env], event.activation)
            case EnvironmentParked():
                self._parked(self.models[event.env], event)
            case EnvironmentRetired():
                self._over(self.models[event.env], "retire")
                self.models[event.env].retired = True
            case EnvironmentForked():
                self.models[event.env].children.append(event.child)
            case GenerationsPruned():
                self._pruned(self.models[event.env], event)
            case PolicyChosen():
                self.models[event.env].chosen = (event.snapshots, event.retention)
            case GenerationMarked():
                (self.marks.add if event.mark else self.marks.discard)(f"{event.env}@{event.generation}")
            case _:
                pass

    def _origin(self, event: EnvironmentCreated) -> str:
        if event.how != "fork":
            return f"{event.env}@1"
        assert event.parent is not None
        return self.models[event.parent.env].origin

    def aborted(self, event: TransitionAborted) -> None:
        """A transition was given up; also told when the event is only queued, for its environment serves on at once."""
        model = self.models.get(event.env)
        if model is not None and model.frozen == event.transition:
            model.frozen = model.op = ""
            if not model.generation:
                del self.models[event.env]

    def _begun(self, model: Model, event: TransitionBegun) -> None:
        self.require(not model.retired, "I10", f"{event.op} of {model.env}, which has ended")
        model.frozen, model.op = event.transition, event.op

    def _published(self, model: Model, event: GenerationPublished) -> None:
        moment = f"{event.env}@{event.generation}"
        self.require(event.generation == model.generation + 1, "I5", f"{moment} follows {model.moment}")
        self.require(event.manifest.keys() == self._resources, "I4", f"{moment} names {sorted(event.manifest)}")
        for name, component in event.manifest.items():
            self.require(component.sealed.version in self.world.versions, "I4", f"{name} of {moment} is not sealed")
        content = {store: dict(self.world.contents[event.manifest[store].sealed.version]) for store in self.stores}
        if event.op == "snapshot":
            self._check_running(model, event.op)
            self.require(event.epoch == model.epoch, "I5", f"{moment} continues, and has another epoch")
            if content != model.content:
                self.fail("cut", f"{moment} is {content}, and {model.env} held {model.content}")
        else:
            source = self._source(model, event.op, event.source)
            expected = self._base if not source else self.published.get(source)
            if content != expected:
                self.fail("state", f"{moment} is {content}, and {source or 'the base'} {expected}")
            if event.op in _SWITCHING or event.op == "recover":
                self._over(model, event.op)
            model.epoch = event.generation
            model.content = copied(content)
        model.generation, model.frozen, model.op = event.generation, "", ""
        self.published[moment], self.ops[moment] = content, event.op
        self.needs[moment] = frozenset((name, one.sealed.version) for name, one in event.manifest.items())
        self.reached.update(self.needs[moment])
        model.changed()

    def _pruned(self, model: Model, event: GenerationsPruned) -> None:
        for one in event.pruned:
            moment = f"{event.env}@{one.generation}"
            stays = one.generation in (1, model.generation) or moment in self.marks
            self.require(moment in self.needs and not stays, "I11", f"{moment} was pruned")
            self.reached.subtract(self.needs.pop(moment))
        for one in event.pruned:
            self.require(
                str(one.nearest) in self.needs, "I11", f"{event.env} goes on from {one.nearest}, which is gone"
            )
        self.reached = +self.reached  # without what nothing needs

    def _source(self, model: Model, op: str, source: Moment | None) -> str:
        """From where the content must come, by our own account."""
        named = str(source) if source is not None else ""
        wanted = {"create": "", "reset": model.origin, "recover": model.moment}.get(op, named)
        self.require(named == wanted, "answer", f"{op} of {model.env} takes {named or 'the base'}, not {wanted}")
        return named

    def _check_running(self, model: Model, op: str) -> None:
        """Nothing runs on what is replaced, but what was told to end and can't be joined, where content is switched."""
        continuing = op in ("snapshot", "park")
        for holder in model.holders:
            if continuing or holder.joinable or not holder.ended:
                self.fail("I3", f"{op} of {model.env} while {holder.what} runs on generation {holder.generation}")
        for branch, namespace in self.world.branches.items():
            if namespace.background and namespace.handle.env == model.env and self.is_used(branch):
                alive = namespace.background if continuing else namespace.background - self.world.unjoinable
                self.require(not alive, "I3", f"{op} of {model.env} while {sorted(alive)} work in the background")

    def _over(self, model: Model, op: str) -> None:
        if model.serving:
            self._check_running(model, op)
        model.holders.clear()  # who could not be joined holds an abandoned branch now
        model.serving, model.frozen, model.op = False, "", ""

    def _activated(self, model: Model, activation: int) -> None:
        self.require(activation > model.activation, "I7", f"{model.env} is activated as number {activation} again")
        model.activation, model.serving = activation, True
        bound = sum(one.serving for one in self.models.values())
        if self._slots:
            self.require(bound <= self._slots, "slots", f"{bound} environments are bound in {self._slots} slots")

    def _parked(self, model: Model, event: EnvironmentParked) -> None:
        self._check_running(model, "park")
        if event.reason.startswith("could not be thawed"):  # it was bound, and nobody had been let in again
            model.content = copied(self.published[model.moment])
            model.changed()  # what a daemon wrote into what was thawed already went with it
        kept = self.published[model.moment]
        if model.content != kept:
            self.fail("state", f"{model.env} was parked as {kept}, and held {model.content}: it is lost")
        model.serving = False

    # --- what the workload asks -------------------------------------------------------------------------------------

    def granted(self, lease: Lease, what: str) -> Holder:
        """A lease of the workload was granted. Its holder counts until ``left``."""
        self.catch_up()
        model = self.models[lease.env]
        if not model.serves(lease.identity):
            self.fail("I7", f"{what} was let in by {lease.identity}, and {model.identity} is what serves")
        if lease.generation != model.generation:
            self.fail("I1", f"{what} is on {lease.env}@{lease.generation}, not {model.moment}")
        if lease.parent is None and model.frozen:
            self.fail("I2", f"{what} got a root lease of {lease.env} during {model.frozen}")
        holder = Holder(what, model.generation, lease)
        model.holders.append(holder)
        return holder

    @contextmanager
    def holding(self, lease: Lease, what: str, *, joinable: bool = True) -> Iterator[Holder]:
        """Around the body of a lease."""
        holder = self.granted(lease, what)
        holder.joinable = joinable
        try:
            yield holder
            self.still(lease, holder)
        finally:
            self._left(lease.env, holder)

    def still(self, lease: Lease, holder: Holder) -> None:
        """The generation is what it was when the lease was granted."""
        if lease.revoked:
            return
        self.catch_up()
        now, told = self.models[lease.env].generation, lease.generation
        if not now == told == holder.generation:
            self.fail("I1", f"{holder.what} began on {lease.env}@{holder.generation}; now it is {now} ({told} is told)")

    def serves(self, identity: Identity) -> bool:
        """Whether this identity serves now."""
        self.catch_up()
        model = self.models.get(identity.env)
        return model is not None and model.serves(identity)

    @contextmanager
    def acting(self, identity: Identity, what: str, *, joinable: bool) -> Iterator[None]:
        """Around what an adapter does for an action."""
        model = self.models[identity.env]
        holder = Holder(what, model.generation, current_lease(), joinable)
        model.holders.append(holder)
        try:
            yield
        finally:
            self._left(identity.env, holder)

    def _left(self, env: str, holder: Holder) -> None:
        model = self.models.get(env)
        if model is not None and holder in model.holders:
            model.holders.remove(holder)

    @contextmanager
    def watching(self, env: str) -> Iterator[list[Content]]:
        """Every content that the environment has while the body runs."""
        self.catch_up()
        model = self.models[env]
        seen = [copied(model.content)]
        model.watchers.append(seen)
        try:
            yield seen
        finally:
            model.watchers = [watcher for watcher in model.watchers if watcher is not seen]

    def look(self, kernel: Kernel, env: str) -> None:
        """The environment's stores, read raw, hold what they must."""
        self.catch_up()
        model, capsule = self.models.get(env), kernel.environments.get(env)
        if model is None or capsule is None or not model.serving or capsule.generation != model.generation:
            return
        branches = kernel.branches(env)
        for store in self.stores if branches else ():
            found = self.world.branches.get(branches[store].id)
            self.require(found is not None, "state", f"{env}'s {store} is gone: {branches[store].id}")
            assert found is not None
            if found.content != model.content[store]:
                self.fail("state", f"{env}'s {store} holds {found.content}, not {model.content[store]}")

    # --- the ends of engines ----------------------------------------------------------------------------------------

    def ended(self) -> None:
        """The engine is gone: what was bound is lost, and nothing runs any more."""
        self.position = min(self.position, len(self.world.disk.rows))
        self.catch_up()
        for model in self.models.values():
            model.was_bound = model.serving
            model.serving = False
            if model.generation:  # what was being founded is given up by an event
                model.frozen = model.op = ""
            model.holders.clear()
            model.watchers.clear()
            if model.generation:
                model.content = copied(self.published[model.moment])

    def opened(self, kernel: Kernel) -> None:
        """After an open: everything published is there, what was bound is recovered, everybody is at rest."""
        self.catch_up()
        for env, capsule in kernel.environments.items():
            model = self.models.get(env)
            self.require(model is not None, "I5", f"{env} is there after the open, and was never published")
            assert model is not None
            self.require(
                capsule.phase in (Phase.PARKED, Phase.RETIRED), "I9", f"{env} is {capsule.phase.value} after an open"
            )
            self.require(capsule.generation == model.generation, "I10", f"{capsule.moment} is not {model.moment}")
            self.check_policies(kernel, model)
            if model.was_bound:
                self.require(capsule.head.op == "recover", "state", f"{env} was bound, and its tail was not given up")
        for env, model in self.models.items():
            self.require(env in kernel.environments, "I5", f"{model.moment} is lost")
        self.check_published()

    def check_policies(self, kernel: Kernel, model: Model) -> None:
        """What was chosen for an environment holds, whichever engine it was told."""
        upkeep = kernel.upkeep
        for chosen, held in zip(model.chosen, (upkeep.snapshots_of, upkeep.retention_of), strict=True):
            if chosen and str(held(model.env)) != chosen:
                self.fail("I10", f"{model.env} keeps by {str(held(model.env))!r}, and {chosen!r} was chosen")

    def check_published(self) -> None:
        """Every published generation that was not pruned still has the content that it had when it was published."""
        for env, model in self.models.items():
            for number in range(1, model.generation + 1):
                self.require(f"{env}@{number}" in self.published, "I5", f"{env}@{number} was never seen")
        for resource, version in self.reached:
            self.require(version in self.world.versions, "I11", f"{version} of {resource} is gone")
