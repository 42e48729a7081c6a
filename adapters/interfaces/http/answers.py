"""The forms of answers, for the document that describes this interface. Fields that are not named here may be added."""

from __future__ import annotations

from typing import Any

import msgspec

from statefork.journal.values import Json


class Moment(msgspec.Struct, kw_only=True):
    """A published generation."""

    ref: str
    env: str
    generation: int


class Restored(Moment, kw_only=True):
    """The generation that a restore published; ``made`` tells how the moment was made, where nobody had sealed it."""

    made: dict[str, Json] | None


class Environment(msgspec.Struct, kw_only=True):
    """An environment."""

    env: str
    ref: str
    generation: int
    epoch: int
    phase: str
    in_doubt: bool
    actions: int
    origin: str
    parent: str | None
    policies: dict[str, Json]
    holds: dict[str, str]
    of_this_contract: bool
    sites: dict[str, str]


class Environments(msgspec.Struct, kw_only=True):
    """Every environment that is not retired."""

    environments: list[Environment]


class Created(msgspec.Struct, kw_only=True):
    """New environments."""

    created: list[Environment]


class Reset(msgspec.Struct, kw_only=True):
    """Environments that are back at their origins."""

    reset: list[Moment]


class Child(Environment, kw_only=True):
    """A child of a moment. ``stands``: the generation that stands at the moment that was named otherwise."""

    made: dict[str, Json] | None
    stands: str | None


class Children(msgspec.Struct, kw_only=True):
    """Children of a moment."""

    children: list[Child]


class Clone(Environment, kw_only=True):
    """An environment whose origin is a moment."""

    made: dict[str, Json] | None


class Status(msgspec.Struct, kw_only=True):
    """What is served."""

    contract: str
    state: str
    journal: str
    place: str | None
    environments: list[Environment]
    resources: dict[str, Json]
    slots: dict[str, Json]
    recovered: dict[str, Json]
    cost: dict[str, Json] | None = None


class Seen(msgspec.Struct, kw_only=True):
    """What was seen. ``text``: the accessibility snapshot; ``screenshot``: the digest of a blob."""

    number: int
    text: str
    digest: str
    url: str
    title: str
    screenshot: str
    value: Json


class Kept(msgspec.Struct, kw_only=True):
    """What is kept of an environment."""

    env: str
    snapshots: str
    retention: str
    since: dict[str, Json]
    contract: dict[str, str]


class Pruned(msgspec.Struct, kw_only=True):
    """Generations that were let go."""

    env: str
    retention: str
    dry_run: bool
    pruned: list[dict[str, Json]]


class Marked(Moment, kw_only=True):
    """A generation that is called something."""

    mark: str


class Progress(msgspec.Struct, kw_only=True):
    """How far something is; ``doing`` is empty where there is no such task, none yet or none any more."""

    fraction: float
    doing: str
    detail: str


class Step(msgspec.Struct, kw_only=True):
    """The next step of a replay; None where there is none yet."""

    step: dict[str, Json] | None


class Span(msgspec.Struct, kw_only=True):
    """The moments of one history between two ends, by number."""

    prefix: str
    low: int
    high: int


class Compared(msgspec.Struct, kw_only=True):
    """How it went when it was done again, and the first step that went otherwise."""

    exact: bool
    verdict: str
    first_divergence: Json


class Difference(msgspec.Struct, kw_only=True):
    """What differs between two moments."""

    equal: bool
    resources: dict[str, Any]
    page: dict[str, Any]


class Blamed(msgspec.Struct, kw_only=True):
    """The action that last changed one thing."""

    found: bool


class Imported(msgspec.Struct, kw_only=True):
    """An environment of a file."""

    env: str


class Audited(msgspec.Struct, kw_only=True):
    """The report of an audit."""

    clean: bool
    journal: str
    events: int
    findings: list[dict[str, Json]]
    unreadable: list[str]
    notes: list[str]


class Log(msgspec.Struct, kw_only=True):
    """Journaled events in order. ``next``: ask ``after`` this position for those that follow."""

    events: list[dict[str, Json]]
    next: int


ANSWERS: dict[str, type[msgspec.Struct]] = {
    "status": Status,
    "create": Environment,
    "create-many": Created,
    "describe": Environment,
    "act": Seen,
    "snapshot": Moment,
    "reset": Moment,
    "reset-many": Reset,
    "restore": Restored,
    "fork": Children,
    "clone": Clone,
    "retire": Moment,
    "park": Moment,
    "recover": Moment,
    "activate": Environment,
    "replay": Compared,
    "step": Step,
    "between": Span,
    "diff": Difference,
    "blame": Blamed,
    "import": Imported,
    "progress": Progress,
    "keep": Kept,
    "prune": Pruned,
    "mark": Marked,
}
"""The form of a verb's answer; any object where there is none. A test compares them with real answers."""
