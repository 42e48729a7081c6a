"""Rule 1: everything that may change an environment's phase stands in this file, in one literal table.

``TABLE`` says which event may follow in which phase and where it leads; ``step`` looks it up, the fold
(:func:`statefork.engine.capsule.evolve`) moves phases by nothing else, and ``decide`` turns a command into events that
the table allows, or raises. The diagram in the documentation is drawn from the table::

    python -m statefork.engine.transitions

Pure: times and names come with the commands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from statefork.engine.commands import (
    Abort,
    Activate,
    Answer,
    Begin,
    Command,
    Found,
    NoteFork,
    Park,
    Publish,
    Recover,
    Retire,
)
from statefork.engine.errors import (
    EnvironmentExists,
    EnvironmentFrozen,
    IllegalTransition,
    NotReady,
    StateforkError,
    UnknownEnvironment,
    UnknownRef,
)
from statefork.engine.errors import EnvironmentRetired as RetiredError
from statefork.journal.events import (
    CommandAnswered,
    EnvironmentActivated,
    EnvironmentCreated,
    EnvironmentForked,
    EnvironmentParked,
    EnvironmentRetired,
    Event,
    GenerationPublished,
    Operation,
    TransitionAborted,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.values import Moment

if TYPE_CHECKING:
    from statefork.engine.capsule import Capsule


class Phase(enum.Enum):
    """Where an environment stands. The fold of its control stream gives exactly one of these."""

    VOID = "void"  # never created, or its founding failed: the name is free
    NEW = "new"  # named in the journal, nothing begun
    FOUNDING = "founding"  # its first generation is being staged
    SERVING = "serving"  # bound in a slot; leases are granted
    DRAINING = "draining"  # frozen: no new root lease; those that live are ending, then the successor is staged
    STAGING = "staging"  # drained; only inside the append that publishes
    PARKED = "parked"  # published and unbound; costs only disk
    SHIFTING = "shifting"  # a parked environment's content is being replaced
    RECOVERING = "recovering"  # the tail is lost; the last published components become a new generation
    RETIRED = "retired"  # ended; its history stays readable


class Row(NamedTuple):
    """In phase ``frm``, an event of class ``event`` (with one of ``ops``, where it has any) leads to phase ``to``."""

    frm: Phase
    event: type[Event]
    to: Phase
    ops: tuple[Operation, ...] = ()


_FOUNDING: tuple[Operation, ...] = ("create", "fork", "clone")
_SWITCHING: tuple[Operation, ...] = ("reset", "restore")
_SERVED: tuple[Operation, ...] = ("snapshot", "reset", "restore")

TABLE: tuple[Row, ...] = (
    Row(Phase.VOID, EnvironmentCreated, Phase.NEW),
    Row(Phase.NEW, TransitionBegun, Phase.FOUNDING, _FOUNDING),
    Row(Phase.NEW, EnvironmentRetired, Phase.RETIRED),
    Row(Phase.FOUNDING, GenerationPublished, Phase.PARKED, _FOUNDING),
    Row(Phase.FOUNDING, TransitionAborted, Phase.VOID, _FOUNDING),
    Row(Phase.SERVING, TransitionBegun, Phase.DRAINING, _SERVED),
    Row(Phase.DRAINING, TransitionDrained, Phase.STAGING),
    Row(Phase.DRAINING, TransitionAborted, Phase.SERVING, _SERVED),
    Row(Phase.STAGING, GenerationPublished, Phase.SERVING, ("snapshot",)),
    Row(Phase.STAGING, GenerationPublished, Phase.PARKED, _SWITCHING),
    Row(Phase.STAGING, TransitionAborted, Phase.SERVING, _SERVED),
    Row(Phase.SERVING, EnvironmentParked, Phase.PARKED),
    Row(Phase.SERVING, EnvironmentRetired, Phase.RETIRED),
    Row(Phase.SERVING, TransitionBegun, Phase.RECOVERING, ("recover",)),
    Row(Phase.RECOVERING, GenerationPublished, Phase.PARKED, ("recover",)),
    Row(Phase.RECOVERING, TransitionAborted, Phase.SERVING, ("recover",)),
    Row(Phase.PARKED, EnvironmentActivated, Phase.SERVING),
    Row(Phase.PARKED, EnvironmentRetired, Phase.RETIRED),
    Row(Phase.PARKED, TransitionBegun, Phase.SHIFTING, _SWITCHING),
    Row(Phase.SHIFTING, TransitionDrained, Phase.SHIFTING),
    Row(Phase.SHIFTING, GenerationPublished, Phase.PARKED, _SWITCHING),
    Row(Phase.SHIFTING, TransitionAborted, Phase.PARKED, _SWITCHING),
    # A published generation may get children whatever its environment does meanwhile, even after its end.
    Row(Phase.SERVING, EnvironmentForked, Phase.SERVING),
    Row(Phase.DRAINING, EnvironmentForked, Phase.DRAINING),
    Row(Phase.STAGING, EnvironmentForked, Phase.STAGING),
    Row(Phase.PARKED, EnvironmentForked, Phase.PARKED),
    Row(Phase.SHIFTING, EnvironmentForked, Phase.SHIFTING),
    Row(Phase.RECOVERING, EnvironmentForked, Phase.RECOVERING),
    Row(Phase.RETIRED, EnvironmentForked, Phase.RETIRED),
    # What a command with a key has led to is told beside its effect, in the same append.
    Row(Phase.SERVING, CommandAnswered, Phase.SERVING),
    Row(Phase.PARKED, CommandAnswered, Phase.PARKED),
    Row(Phase.RETIRED, CommandAnswered, Phase.RETIRED),
)

_STEPS: Mapping[tuple[Phase, type[Event], str], Phase] = {
    (row.frm, row.event, op): row.to for row in TABLE for op in (row.ops or ("",))
}

_REFUSALS: Mapping[Phase, tuple[type[StateforkError], str]] = {
    Phase.VOID: (UnknownEnvironment, "no environment has this name"),
    Phase.NEW: (NotReady, "it has no generation yet"),
    Phase.FOUNDING: (NotReady, "its first generation is still being staged"),
    Phase.SERVING: (IllegalTransition, "it is serving"),
    Phase.DRAINING: (EnvironmentFrozen, "a transition is under way"),
    Phase.STAGING: (EnvironmentFrozen, "a transition is under way"),
    Phase.PARKED: (IllegalTransition, "it is parked"),
    Phase.SHIFTING: (EnvironmentFrozen, "a transition is under way"),
    Phase.RECOVERING: (EnvironmentFrozen, "it is being recovered"),
    Phase.RETIRED: (RetiredError, "it has ended; its history can still be read and forked"),
}


def step(phase: Phase, event: Event) -> Phase:
    """The phase after an event. Raises IllegalTransition where the table has no such row."""
    op = event.op if isinstance(event, TransitionBegun | GenerationPublished | TransitionAborted) else ""
    found = _STEPS.get((phase, type(event), op))
    if found is None:
        raise IllegalTransition(
            f"{tag(type(event))}{f' ({op})' if op else ''} can't follow in phase {phase.value}",
            phase=phase.value,
            event=tag(type(event)),
            operation=op,
        )
    return found


def tag(event: type[Event]) -> str:
    """The stable tag of an event class."""
    return str(event.__struct_config__.tag)


def decide(capsule: Capsule | None, command: Command) -> tuple[Event, ...]:
    """The events that the command leads to, all of which the table allows from the capsule's phase.

    Raises UnknownEnvironment, EnvironmentExists, NotReady, EnvironmentFrozen, EnvironmentRetired, IllegalTransition,
    UnknownRef.
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
    kind, why = _REFUSALS[phase]
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
        case Answer(key=key, request=request, part=part):
            return (CommandAnswered(at=at, env=env, key=key, request=request, generation=head, part=part),)
        case _:
            raise AssertionError(f"unknown command {type(command).__name__}")


def _publish(capsule: Capsule, command: Publish) -> tuple[Event, ...]:
    under_way = capsule.transition
    if under_way is None:
        raise _refusal(capsule.phase, command)
    if command.manifest.keys() != command.required:  # I4
        raise NotReady(
            f"the manifest of {command.env} does not name every resource of its contract exactly once",
            environment=command.env,
            missing=" ".join(sorted(command.required - command.manifest.keys())),
            unknown=" ".join(sorted(command.manifest.keys() - command.required)),
        )
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
        actions=capsule.actions if op in ("snapshot", *_FOUNDING) else command.source_actions,
        timings_ms=command.timings_ms,
    )
    events: list[Event] = [published]
    if op not in _FOUNDING:
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


def diagram() -> str:
    """The table as a mermaid state diagram. Rows that lead back to where they began are left out."""
    lines = ["stateDiagram-v2", "    [*] --> void"]
    for row in TABLE:
        if row.frm is row.to:
            continue
        label = tag(row.event).partition("/")[0] + (f" ({', '.join(row.ops)})" if row.ops else "")
        lines.append(f"    {row.frm.value} --> {row.to.value}: {label}")
    lines.append(f"    {Phase.RETIRED.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
