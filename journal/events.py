"""The event vocabulary. A tag is ``noun.verb/version`` and never a class name; new fields get defaults.

Streams: ``engine`` (the state directory as a whole), ``env/<id>`` (an environment's lifecycle: every append states the
version it expects), ``act/<id>`` (its activity: actions, requests, evaluations; many writers, no expectation).
Times (``at``) are Unix seconds, UTC, from the engine's clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from statefork.journal.values import Component, Held, Json, Moment, Observation, Sealed

ENGINE_STREAM = "engine"

Operation = Literal["create", "snapshot", "reset", "restore", "fork", "clone", "recover"]
Outcome = Literal["ok", "failed", "unknown"]


def control_stream(env: str) -> str:
    """The stream of an environment's lifecycle."""
    return f"env/{env}"


def activity_stream(env: str) -> str:
    """The stream of what was done in an environment."""
    return f"act/{env}"


class Base(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """What all events have: when the engine's clock said it happened.

    ``gc=False``: made of values, an event can't reach itself, and the garbage collector need not look for that.
    """

    at: float


# --- engine -----------------------------------------------------------------------------------------------------


class JournalCreated(Base, frozen=True, kw_only=True, tag="journal.created/1"):
    """First event of every journal: its identity, which every handle bears."""

    journal: str
    statefork: str


class EngineStarted(Base, frozen=True, kw_only=True, tag="engine.started/1"):
    """An engine opened the journal for writing. ``pid`` is informative only."""

    run: str
    pid: int
    statefork: str


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
    lost: dict[str, tuple[int, ...]] = {}  # environment -> the actions of its tail
    orphan_kinds: dict[str, int] = {}
    elapsed_ms: float = 0.0


# --- env/<id>: lifecycle ----------------------------------------------------------------------------------------


class EnvironmentCreated(Base, frozen=True, kw_only=True, tag="environment.created/1"):
    """A new environment begins (first event of its stream). Nothing of it can be used before its first publish."""

    env: str
    contract: str
    how: Literal["create", "fork", "clone"]
    parent: Moment | None = None
    origin: Moment
    inherited_actions: int = 0  # length of the lineage at the fork; 0 for create and clone


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
    timings_ms: dict[str, float] = {}


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
    timings_ms: dict[str, float] = {}
    probed_ms: dict[str, float] = {}


class EnvironmentParked(Base, frozen=True, kw_only=True, tag="environment.parked/1"):
    """Everything writable was sealed and unbound; the environment costs only disk."""

    env: str
    generation: int
    reason: str = ""


class EnvironmentRetired(Base, frozen=True, kw_only=True, tag="environment.retired/1"):
    """The end of an environment; its history stays readable."""

    env: str
    generation: int


class CommandAnswered(Base, frozen=True, kw_only=True, tag="command.answered/1"):
    """A command that bore a key has had this effect; in the same append as the effect. Who repeats it gets the answer.

    ``request`` is the command in words, by which a key that is used for two commands is noticed. ``part`` counts the
    children of a fork and the environments of a create or reset from 1; 0 is what a command led to as a whole.
    """

    env: str
    key: str
    request: str
    generation: int
    part: int = 0


# --- act/<id>: activity -----------------------------------------------------------------------------------------


class ActionBegun(Base, frozen=True, kw_only=True, tag="action.begun/1"):
    """An agent's action was admitted on a generation. ``number`` counts along the lineage, from 1."""

    env: str
    generation: int
    epoch: int
    activation: int
    lease: int
    number: int
    action: dict[str, Json]


class ActionEnded(Base, frozen=True, kw_only=True, tag="action.ended/1"):
    """How the action ended. ``unknown``: it was revoked or timed out, so part of it may have happened."""

    env: str
    generation: int
    epoch: int
    activation: int
    lease: int
    number: int
    outcome: Outcome
    error: str = ""
    observation: Observation | None = None
    elapsed_ms: float = 0.0


class LeaseRevoked(Base, frozen=True, kw_only=True, tag="lease.revoked/1"):
    """A drain deadline passed and the holder was cancelled."""

    env: str
    generation: int
    lease: int
    holder: str
    reason: str


class InputRecorded(Base, frozen=True, kw_only=True, tag="input.recorded/1"):
    """A mutating request that no action caused (a poll, a script, a user's curl): an input of the trajectory."""

    env: str
    generation: int
    epoch: int
    lease: int
    after_action: int  # lineage number of the action before it
    method: str
    url: str
    headers: dict[str, str] = {}
    body: str = ""  # blob digest; empty when there was no body
    status: int = 0


class RequestRefused(Base, frozen=True, kw_only=True, tag="request.refused/1"):
    """The gateway turned a request away; ``code`` is the error's stable code."""

    env: str
    epoch: int
    activation: int
    status: int
    code: str
    method: str
    url: str
    detail: str = ""


class EnvironmentQueued(Base, frozen=True, kw_only=True, tag="environment.queued/1"):
    """All slots of a kind are taken: the environment waits, at this position (1 is served next)."""

    env: str
    kind: str
    position: int


class EvaluationRecorded(Base, frozen=True, kw_only=True, tag="evaluation.recorded/1"):
    """An evaluator's verdict, and the one generation that it read."""

    env: str
    generation: int
    epoch: int
    lease: int
    name: str
    score: float
    after_action: int
    detail: Json = None


class ReplayVerdict(Base, frozen=True, kw_only=True, tag="replay.verdict/1"):
    """A re-execution of this environment's trajectory, in another environment, and what it gave."""

    env: str
    child: str
    source: Moment
    actions: int
    verdict: str
    first_divergence: int = 0  # lineage number; 0 = none


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
    | TransitionAborted
    | EnvironmentForked
    | EnvironmentActivated
    | EnvironmentParked
    | EnvironmentRetired
    | CommandAnswered
    | ActionBegun
    | ActionEnded
    | LeaseRevoked
    | InputRecorded
    | RequestRefused
    | EnvironmentQueued
    | EvaluationRecorded
    | ReplayVerdict
)

__all__ = [
    "ENGINE_STREAM",
    "ActionBegun",
    "ActionEnded",
    "BaseProvisioned",
    "CommandAnswered",
    "Component",
    "ContractRegistered",
    "EngineStarted",
    "EngineStopped",
    "EnvironmentActivated",
    "EnvironmentCreated",
    "EnvironmentForked",
    "EnvironmentParked",
    "EnvironmentQueued",
    "EnvironmentRetired",
    "EvaluationRecorded",
    "Event",
    "GenerationPublished",
    "Held",
    "InputRecorded",
    "JournalCreated",
    "LeaseRevoked",
    "Observation",
    "Operation",
    "OrphanCollected",
    "Outcome",
    "RecoveryFinished",
    "ReplayVerdict",
    "RequestRefused",
    "Sealed",
    "TransitionAborted",
    "TransitionBegun",
    "TransitionDrained",
    "activity_stream",
    "control_stream",
]
