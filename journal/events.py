"""The event vocabulary. A tag is ``noun.verb/version`` and never a class name; new fields get defaults.

Streams: ``engine`` (the state directory as a whole; ``engine/<place>`` where several share a journal), ``env/<id>`` (an
environment's lifecycle: every append states the version it expects), ``act/<id>`` (its activity: actions, requests,
evaluations; many writers, no expectation).
Times (``at``) are Unix seconds, UTC, from the engine's clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from statefork.journal.activity import (
    ActionBegun,
    ActionEnded,
    EnvironmentQueued,
    EvaluationRecorded,
    ExchangeRecorded,
    InputRecorded,
    LeaseRevoked,
    Outcome,
    ReplayVerdict,
    RequestRefused,
)
from statefork.journal.event import Base
from statefork.journal.values import Component, Held, Moment, Observation, Pruned, Sealed

ENGINE_STREAM = "engine"

Operation = Literal["create", "snapshot", "reset", "restore", "fork", "clone", "recover", "import"]


def engine_stream(place: str) -> str:
    """The stream of an engine; ``place``: its state directory's name in a shared journal, empty in one of its own."""
    return f"{ENGINE_STREAM}/{place}" if place else ENGINE_STREAM


def place_of(stream: str) -> str:
    """The place whose engine has this stream; empty where it is no engine's, or that of a journal's only one."""
    name, _, place = stream.partition("/")
    return place if name == ENGINE_STREAM else ""


def control_stream(env: str) -> str:
    """The stream of an environment's lifecycle."""
    return f"env/{env}"


def activity_stream(env: str) -> str:
    """The stream of what was done in an environment."""
    return f"act/{env}"


# --- engine -----------------------------------------------------------------------------------------------------


class JournalCreated(Base, frozen=True, kw_only=True, tag="journal.created/1"):
    """First event of every journal: its identity, which every handle bears."""

    journal: str
    statefork: str


class EngineStarted(Base, frozen=True, kw_only=True, tag="engine.started/1"):
    """An engine opened the journal for writing. ``pid`` and ``where`` (directory and machine) are informative only."""

    run: str
    pid: int
    statefork: str
    where: str = ""  # told in shared journals, so that people find the place again


class EngineStopped(Base, frozen=True, kw_only=True, tag="engine.stopped/1"):
    """The engine closed in good order: every environment was parked."""

    run: str


class ContractRegistered(Base, frozen=True, kw_only=True, tag="contract.registered/1"):
    """The text of a contract, so that a journal explains itself."""

    digest: str
    name: str
    text: str


class BaseProvisioned(Base, frozen=True, kw_only=True, tag="base.provisioned/1"):
    """The immutable bases of a contract's resources exist; ``create`` branches from them."""

    contract: str
    manifest: dict[str, Component]


class OrphanCollected(Base, frozen=True, kw_only=True, tag="orphan.collected/1"):
    """Something in the world that no environment reaches was removed."""

    resource: str
    kind: str
    name: str


class RecoveryFinished(Base, frozen=True, kw_only=True, tag="recovery.finished/1"):
    """What opening after a crash found and did."""

    run: str
    settled: tuple[str, ...] = ()
    recovered: tuple[Moment, ...] = ()
    orphans: int = 0
    lost: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)  # environment -> the actions of its tail
    orphan_kinds: dict[str, int] = msgspec.field(default_factory=dict)
    elapsed_ms: float = 0.0
    retired: tuple[str, ...] = ()  # environments that were of use to a command alone that is gone


# --- env/<id>: lifecycle ----------------------------------------------------------------------------------------


class EnvironmentCreated(Base, frozen=True, kw_only=True, tag="environment.created/1"):
    """A new environment begins. Nothing of it can be used before its first publish.

    ``place``: the state directory that has it, by its name in a shared journal; empty: the journal's only one.
    ``helps``: what it is there for, where it is of use to one command alone, which retires it at its end.
    """

    env: str
    contract: str
    how: Literal["create", "fork", "clone", "import"]
    parent: Moment | None = None
    origin: Moment
    inherited_actions: int = 0  # length of the lineage at the fork; 0 for create and clone
    place: str = ""
    helps: str = ""


class TransitionBegun(Base, frozen=True, kw_only=True, tag="transition.begun/1"):
    """Freeze: from here on no root lease is granted until publish or abort."""

    env: str
    transition: str
    op: Operation
    base: int  # the published generation that serves until publish; 0 when there is none
    source: Moment | None = None  # where the new components come from; None = the environment's own present


class TransitionDrained(Base, frozen=True, kw_only=True, tag="transition.drained/1"):
    """Every lease on the old generation ended; ``held`` names what was open at the freeze."""

    env: str
    transition: str
    held: tuple[Held, ...] = ()


class GenerationPublished(Base, frozen=True, kw_only=True, tag="generation.published/1"):
    """The one moment at which an environment's head moves."""

    env: str
    transition: str
    op: Operation
    generation: int
    epoch: int
    contract: str
    manifest: dict[str, Component]
    source: Moment | None = None
    actions: int = 0  # length of the lineage (recorded actions) at this moment
    lost_actions: tuple[int, ...] = ()
    timings_ms: dict[str, float] = msgspec.field(default_factory=dict)


class GenerationsPruned(Base, frozen=True, kw_only=True, tag="generations.pruned/1"):
    """From here on nothing is made of these generations' content; what they alone hold is removed."""

    env: str
    retention: str  # what was asked for, in words
    pruned: tuple[Pruned, ...]
    by: Literal["", "policy", "command"] = ""  # the policy that held at a publish, or a command; empty: nobody said


class GenerationMarked(Base, frozen=True, kw_only=True, tag="generation.marked/1"):
    """Somebody gave a generation a mark, which keeps it; an empty one takes the mark away."""

    env: str
    generation: int
    mark: str


class PolicyChosen(Base, frozen=True, kw_only=True, tag="policy.chosen/1"):
    """From here on an environment's snapshots are taken, and its generations stay, as this says; it says all of it.

    In the contract's words; empty: as the contract says that the engine runs.
    """

    env: str
    snapshots: str = ""
    retention: str = ""


class TransitionAborted(Base, frozen=True, kw_only=True, tag="transition.aborted/1"):
    """The transition failed or was cancelled; the old generation serves again (or the environment never existed)."""

    env: str
    transition: str
    op: Operation
    code: str
    reason: str
    component: str = ""
    held: tuple[Held, ...] = ()
    activation: int = 0  # of the successor that was being staged, and is never used; 0: none was


class EnvironmentForked(Base, frozen=True, kw_only=True, tag="environment.forked/1"):
    """Written to the *parent's* stream in the same append as the child's first publish."""

    env: str
    generation: int
    child: str
    how: Literal["fork", "clone"] = "fork"


class EnvironmentActivated(Base, frozen=True, kw_only=True, tag="environment.activated/1"):
    """The environment was bound in a slot and probed; its content is that of its generation.

    ``probed_ms`` names every resource that was bound and passed its readiness probe, with the time that both took.
    """

    env: str
    generation: int
    activation: int
    timings_ms: dict[str, float] = msgspec.field(default_factory=dict)
    probed_ms: dict[str, float] = msgspec.field(default_factory=dict)


class EnvironmentParked(Base, frozen=True, kw_only=True, tag="environment.parked/1"):
    """Everything writable was sealed and unbound; the environment costs only disk."""

    env: str
    generation: int
    reason: str = ""


class EnvironmentRetired(Base, frozen=True, kw_only=True, tag="environment.retired/1"):
    """The end of an environment; its history stays readable."""

    env: str
    generation: int


class EnvironmentImported(Base, frozen=True, kw_only=True, tag="environment.imported/1"):
    """The end of an import, in the same append as the generations that it brought: from here on they can be used.

    Activity of this environment that stands before it happened elsewhere, and is told again here: no lease of this
    journal was granted for it (its leases and activations are 0), and its times are those of the first telling.
    """

    env: str
    transition: str
    generation: int  # the last one that was brought
    journal: str  # where it happened
    source: Moment  # what was exported there
    moments: tuple[Moment, ...] = ()  # what the generations from 1 on are called there
    heads: str = ""  # digest of the heads of the streams that were brought, as Reader.heads_digest gives it
    file: str = ""  # SHA-256 of the file
    statefork: str = ""  # which wrote it


class CommandAnswered(Base, frozen=True, kw_only=True, tag="command.answered/1"):
    """A command that bore a key has had this effect; in the same append as the effect. Who repeats it gets the answer.

    ``request`` is the command in words, by which a key that is used for two commands is noticed. ``part`` counts the
    children of a fork and the environments of a create or reset from 1; 0 is what a command led to as a whole. ``of``:
    how many parts a command has that makes the others of this one, which stays until they are there; 0: it does not.
    """

    env: str
    key: str
    request: str
    generation: int
    part: int = 0
    of: int = 0


Event = (
    JournalCreated
    | EngineStarted
    | EngineStopped
    | ContractRegistered
    | BaseProvisioned
    | OrphanCollected
    | RecoveryFinished
    | EnvironmentCreated
    | TransitionBegun
    | TransitionDrained
    | GenerationPublished
    | GenerationsPruned
    | GenerationMarked
    | PolicyChosen
    | TransitionAborted
    | EnvironmentForked
    | EnvironmentActivated
    | EnvironmentParked
    | EnvironmentRetired
    | EnvironmentImported
    | CommandAnswered
    | ActionBegun
    | ActionEnded
    | LeaseRevoked
    | InputRecorded
    | ExchangeRecorded
    | RequestRefused
    | EnvironmentQueued
    | EvaluationRecorded
    | ReplayVerdict
)

__all__ = [
    "ENGINE_STREAM", "ActionBegun", "ActionEnded", "BaseProvisioned", "CommandAnswered", "Component",
    "ContractRegistered", "EngineStarted", "EngineStopped", "EnvironmentActivated", "EnvironmentCreated",
    "EnvironmentForked", "EnvironmentImported", "EnvironmentParked", "EnvironmentQueued", "EnvironmentRetired",
    "EvaluationRecorded", "Event", "ExchangeRecorded", "GenerationPublished", "Held", "InputRecorded", "JournalCreated",
    "LeaseRevoked", "Observation", "Operation", "OrphanCollected", "Outcome", "PolicyChosen", "RecoveryFinished",
    "ReplayVerdict", "RequestRefused", "Sealed", "TransitionAborted", "TransitionBegun", "TransitionDrained",
    "activity_stream", "control_stream",
]  # fmt: skip
