"""What is done in an environment: actions, requests, exchanges, evaluations (see statefork.journal.events)."""

from __future__ import annotations

from typing import Literal

import msgspec

from statefork.journal.event import Base
from statefork.journal.values import Json, Moment, Observation

Outcome = Literal["ok", "failed", "unknown"]


class ActionBegun(Base, frozen=True, kw_only=True, tag="action.begun/1"):
    """An agent's action was admitted on a generation. ``number`` counts along the lineage, from 1.

    ``seed`` and ``clock``: its conditions (see journal.values.Conditions); clock 0.0: they were real, and said ``at``.
    """

    env: str
    generation: int
    epoch: int
    activation: int
    lease: int
    number: int
    action: dict[str, Json]
    seed: str = ""
    clock: float = 0.0


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
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str = ""  # blob digest; empty when there was no body
    status: int = 0
    seed: str = ""  # under what conditions it was answered: as of an action
    clock: float = 0.0


class ExchangeRecorded(Base, frozen=True, kw_only=True, tag="exchange.recorded/1"):
    """A page asked a host outside of its world (the contract's key ``external`` names it), and what came of that.

    ``asked`` tells the order in which a run of the engine was asked; events stand in the order of the answers. Neither
    the request's cookies and credentials are kept, nor its body: only the digest of that.
    """

    env: str
    generation: int
    epoch: int
    activation: int
    lease: int
    asked: int
    after_action: int  # lineage number of the action that was under way, or else of the one before
    cause: Literal["action", "binding", ""]  # binding: pages were brought back; empty: a timer or a poll of a page
    method: str
    url: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str = ""  # SHA-256 of the request's body; empty when there was none
    status: int = 0  # 0: no answer came
    answer_headers: tuple[tuple[str, str], ...] = ()
    answer: str = ""  # blob digest of the answer's body as it came, maybe compressed; empty when there was none
    error: str = ""  # why no answer came
    given: bool = False  # the host was not asked: this is what was recorded before


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
    copied_from: str = ""  # the environment in which it was done, where the child only got what that one held
