"""Rule 1: everything that may change an environment's phase stands in this file, in one literal table.

``TABLE`` says which event may follow in which phase and where it leads; ``step`` looks it up, the fold
(:func:`statefork.engine.capsule.evolve`) moves phases by nothing else, and :mod:`statefork.engine.decisions` turns a
command into events that the table allows, or raises. The diagram in the documentation is drawn from the table::

    python -m statefork.engine.transitions

Pure: times and names come with the commands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from statefork.engine.errors import (
    EnvironmentFrozen,
    IllegalTransition,
    NotReady,
    StateforkError,
    UnknownEnvironment,
)
from statefork.engine.errors import EnvironmentRetired as RetiredError
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
    Operation,
    PolicyChosen,
    TransitionAborted,
    TransitionBegun,
    TransitionDrained,
)


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


_STAGED: tuple[Operation, ...] = ("create", "fork", "clone")
FOUNDING: tuple[Operation, ...] = (*_STAGED, "import")
_SWITCHING: tuple[Operation, ...] = ("reset", "restore")
_SERVED: tuple[Operation, ...] = ("snapshot", "reset", "restore")

TABLE: tuple[Row, ...] = (
    Row(Phase.VOID, EnvironmentCreated, Phase.NEW),
    Row(Phase.NEW, TransitionBegun, Phase.FOUNDING, FOUNDING),
    Row(Phase.NEW, EnvironmentRetired, Phase.RETIRED),
    Row(Phase.FOUNDING, GenerationPublished, Phase.PARKED, _STAGED),
    Row(Phase.FOUNDING, TransitionAborted, Phase.VOID, FOUNDING),
    # An import brings its origin and what was published after it, all in one append.
    Row(Phase.FOUNDING, GenerationPublished, Phase.FOUNDING, ("import", "snapshot")),
    Row(Phase.FOUNDING, EnvironmentImported, Phase.PARKED),
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
    # What is kept changes nothing of where an environment stands.
    Row(Phase.SERVING, GenerationsPruned, Phase.SERVING),
    Row(Phase.PARKED, GenerationsPruned, Phase.PARKED),
    Row(Phase.RETIRED, GenerationsPruned, Phase.RETIRED),
    Row(Phase.SERVING, GenerationMarked, Phase.SERVING),
    Row(Phase.PARKED, GenerationMarked, Phase.PARKED),
    Row(Phase.RETIRED, GenerationMarked, Phase.RETIRED),
    # What holds from here on; in what has ended nothing is published any more.
    Row(Phase.SERVING, PolicyChosen, Phase.SERVING),
    Row(Phase.PARKED, PolicyChosen, Phase.PARKED),
)

_STEPS: Mapping[tuple[Phase, type[Event], str], Phase] = {
    (row.frm, row.event, op): row.to for row in TABLE for op in (row.ops or ("",))
}

REFUSALS: Mapping[Phase, tuple[type[StateforkError], str]] = {
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
