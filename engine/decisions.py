"""What a command leads to: the events that the transition table allows from where an environment stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from statefork.engine.capsule import Capsule
from statefork.engine.commands import (
    Abort,
    Activate,
    Answer,
    Arrive,
    Begin,
    Choose,
    Command,
    Found,
    Mark,
    NoteFork,
    Park,
    Prune,
    Publish,
    Recover,
    Retire,
)
from statefork.engine.errors import (
    EnvironmentExists,
    GenerationPruned,
    IllegalTransition,
    NotReady,
    StateforkError,
    UnknownRef,
)
from statefork.engine.holding import checked
from statefork.engine.transitions import FOUNDING, REFUSALS, Phase, step
from statefork.journal.events import (
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
    PolicyChosen,
    TransitionAborted,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.values import Component, Moment


def decide(capsule: Capsule | None, command: Command) -> tuple[Event, ...]:
    """The events that the command leads to, all of which the table allows from the capsule's phase.

    Raises UnknownEnvironment, EnvironmentExists, NotReady, EnvironmentFrozen, EnvironmentRetired, IllegalTransition,
    UnknownRef, ContractError for a policy that is none. Nothing follows from choosing what holds already.
    """
    if isinstance(command, Found):
        if capsule is not None:
            raise _taken(capsule)
        return _found(command)
    if capsule is None:
        raise _refusal(Phase.VOID, command)
    events = _events(capsule, command)
    phase = capsule.phase
    for event in events:
        try:
            phase = step(phase, event)
        except IllegalTransition:
            raise _refusal(capsule.phase, command) from None
    return events


def _taken(capsule: Capsule) -> EnvironmentExists:
    hint = f"Choose another, or go on with it (in Python: engine.environment({capsule.env!r}))."
    if capsule.phase is Phase.RETIRED:
        hint = "It has ended, and names are never used twice in a journal. Choose another."
    return EnvironmentExists(f"the name {capsule.env} is taken", hint=hint, environment=capsule.env)


def _refusal(phase: Phase, command: Command) -> StateforkError:
    kind, why = REFUSALS[phase]
    doing = getattr(command, "op", type(command).__name__.lower())
    return kind(f"{doing} of {command.env} was refused: {why}", environment=command.env, phase=phase.value)


def _found(command: Found) -> tuple[Event, ...]:
    created = EnvironmentCreated(
        at=command.at,
        env=command.env,
        contract=command.contract,
        how=command.how,
        parent=command.source,
        origin=command.origin,
        inherited_actions=command.inherited_actions,
        place=command.place,
        helps=command.helps,
    )
    begun = TransitionBegun(
        at=command.at,
        env=command.env,
        transition=command.transition,
        op=command.how,
        base=0,
        source=command.source,
    )
    return created, begun


def _events(capsule: Capsule, command: Command) -> tuple[Event, ...]:
    at, env, head = command.at, command.env, capsule.generation
    match command:
        case Begin(transition=name, op=op, source=source):
            return (TransitionBegun(at=at, env=env, transition=name, op=op, base=head, source=source),)
        case Publish():
            return _publish(capsule, command)
        case Abort():
            return _abort(capsule, command)
        case Arrive():
            return _arrive(capsule, command)
        case Recover(transition=name):
            return _recover(capsule, command, name)
        case Activate(activation=number, timings_ms=timings, probed_ms=probed):
            if number <= capsule.activation:
                raise IllegalTransition(f"activation {number} of {env} is not new", environment=env)
            activated = EnvironmentActivated(
                at=at, env=env, generation=head, activation=number, timings_ms=timings, probed_ms=probed
            )
            return (activated,)
        case Park(reason=reason):
            return (EnvironmentParked(at=at, env=env, generation=head, reason=reason),)
        case Retire():
            return (EnvironmentRetired(at=at, env=env, generation=head),)
        case NoteFork(generation=generation, child=child, how=how):
            if generation not in capsule.generations:
                raise UnknownRef(f"{env}@{generation} was never published", environment=env, generation=generation)
            return (EnvironmentForked(at=at, env=env, generation=generation, child=child, how=how),)
        case Prune():
            return _prune(capsule, command)
        case Mark(generation=generation, mark=mark):
            _check_markable(capsule, generation)
            return (GenerationMarked(at=at, env=env, generation=generation, mark=mark),)
        case Choose():
            return _choose(capsule, command)
        case Answer(key=key, request=request, part=part, of=of):
            return (CommandAnswered(at=at, env=env, key=key, request=request, generation=head, part=part, of=of),)
        case _:
            raise AssertionError(f"unknown command {type(command).__name__}")


def _publish(capsule: Capsule, command: Publish) -> tuple[Event, ...]:
    under_way = capsule.transition
    if under_way is None:
        raise _refusal(capsule.phase, command)
    _check_whole(command.env, command.manifest, command.required)
    op, generation = under_way.op, capsule.generation + 1
    published = GenerationPublished(
        at=command.at,
        env=command.env,
        transition=under_way.id,
        op=op,
        generation=generation,
        epoch=capsule.epoch if op == "snapshot" else generation,
        contract=capsule.contract,
        manifest=dict(command.manifest),
        source=under_way.source,
        actions=capsule.actions if op in ("snapshot", *FOUNDING) else command.source_actions,
        timings_ms=command.timings_ms,
    )
    events: list[Event] = [published]
    if op not in FOUNDING:
        events.insert(0, TransitionDrained(at=command.at, env=command.env, transition=under_way.id, held=command.held))
    if command.activation:
        assert op != "snapshot", "a continuing transition keeps its activation"
        assert command.activation > capsule.activation, "activation numbers rise"
        events.append(
            EnvironmentActivated(
                at=command.at,
                env=command.env,
                generation=generation,
                activation=command.activation,
                probed_ms=command.probed_ms,
            )
        )
    return tuple(events)


def _abort(capsule: Capsule, command: Abort) -> tuple[Event, ...]:
    under_way = capsule.transition
    if under_way is None:
        raise _refusal(capsule.phase, command)
    aborted = TransitionAborted(
        at=command.at,
        env=command.env,
        transition=under_way.id,
        op=under_way.op,
        code=command.code,
        reason=command.reason,
        component=command.component,
        held=command.held,
        activation=command.activation,
    )
    return (aborted,)


def _arrive(capsule: Capsule, command: Arrive) -> tuple[Event, ...]:
    under_way = capsule.transition
    if under_way is None or under_way.op != "import" or not command.generations:
        raise _refusal(capsule.phase, command)
    events: list[Event] = []
    for number, brought in enumerate(command.generations, 1):
        _check_whole(command.env, brought.manifest, command.required)
        published = replace(
            brought.published,
            env=command.env,
            transition=under_way.id,
            op="import" if number == 1 else "snapshot",
            generation=number,
            epoch=1,
            contract=capsule.contract,
            manifest=dict(brought.manifest),
            source=None,
            lost_actions=(),
            timings_ms={},
        )
        events.append(published)
    imported = EnvironmentImported(
        at=command.at,
        env=command.env,
        transition=under_way.id,
        generation=len(command.generations),
        journal=command.journal,
        source=command.source,
        moments=tuple(brought.moment for brought in command.generations),
        heads=command.heads,
        file=command.file,
        statefork=command.statefork,
    )
    return (*events, imported)


def _check_markable(capsule: Capsule, generation: int) -> None:
    one = capsule.generations.get(generation)
    if one is None:
        raise UnknownRef(f"{capsule.env}@{generation} was never published", environment=capsule.env)
    if one.pruned:
        hint = "Fork it: it is made again, and what is published there can be marked."
        raise GenerationPruned(f"{capsule.env}@{generation} was pruned", hint=hint, environment=capsule.env)


def _prune(capsule: Capsule, command: Prune) -> tuple[Event, ...]:
    """What stays under every policy is refused here as well: see :mod:`statefork.engine.retention`."""
    for one in command.pruned:
        going = capsule.generations.get(one.generation)
        if going is None or going.pruned or going.opaque or going.mark or one.generation in (1, capsule.generation):
            raise IllegalTransition(f"{command.env}@{one.generation} can't be pruned", environment=command.env)
    pruned = GenerationsPruned(
        at=command.at, env=command.env, retention=command.retention, pruned=command.pruned, by=command.by
    )
    return (pruned,)


def _choose(capsule: Capsule, command: Choose) -> tuple[Event, ...]:
    choice = checked(command.choice)
    before = (capsule.snapshots.text, capsule.retention.text)
    snapshots, retention = (
        old if new is None else new for old, new in zip(before, (choice.snapshots, choice.retention), strict=True)
    )
    if (snapshots, retention) == before:
        return ()
    return (PolicyChosen(at=command.at, env=command.env, snapshots=snapshots, retention=retention),)


def _check_whole(env: str, manifest: Mapping[str, Component], required: frozenset[str]) -> None:
    """I4."""
    if manifest.keys() != required:
        raise NotReady(
            f"the manifest of {env} does not name every resource of its contract exactly once",
            environment=env,
            missing=" ".join(sorted(required - manifest.keys())),
            unknown=" ".join(sorted(manifest.keys() - required)),
        )


def _recover(capsule: Capsule, command: Recover, transition: str) -> tuple[Event, ...]:
    if not capsule.generations:
        raise _refusal(capsule.phase, command)
    last = capsule.head
    source = Moment(env=command.env, generation=last.number)
    begun = TransitionBegun(
        at=command.at, env=command.env, transition=transition, op="recover", base=last.number, source=source
    )
    published = GenerationPublished(
        at=command.at,
        env=command.env,
        transition=transition,
        op="recover",
        generation=last.number + 1,
        epoch=last.number + 1,
        contract=capsule.contract,
        manifest=dict(last.manifest),
        source=source,
        actions=last.actions,
        lost_actions=tuple(range(last.actions + 1, capsule.actions + 1)),
    )
    return begun, published
