"""What is said through the control door: one request Struct per verb, answers as plain JSON objects.

``POST /v1/<verb>`` with the request as its body. An error answers with ``{"error": {code, message, hint, facts}}``, and
with ``failed`` where several things were asked for at once: the error of each that failed, by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from statefork.journal.errors import StateforkError
from statefork.journal.values import Json

Then = Literal["abort", "revoke"]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Patience = Annotated[float, msgspec.Meta(ge=0)]
Timeout = Annotated[float, msgspec.Meta(gt=0)]
"""Seconds. Of no time at all nothing could be known; to wait for none is a wish that can be met."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all requests."""


class Status(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is served. With ``cost``, memory and private bytes are measured, which takes a while."""

    cost: bool = False


class Keyed(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the requests that may be repeated: with the same ``key`` the same request gets the same answer."""

    key: str | None = None


class Create(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new environment. ``snapshots``, ``retention``: as in ``Keep``."""

    name: str
    snapshots: str | None = None
    retention: str | None = None


class CreateMany(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several new environments. ``task``, here and below: a name under which ``progress`` tells how far it is."""

    names: list[str]
    snapshots: str | None = None
    retention: str | None = None
    task: str | None = None


class Act(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action; ``action`` None: look without acting."""

    env: str
    action: dict[str, Json] | None = None
    timeout_s: Timeout | None = None


class Named(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verb that needs nothing but an environment: describe, park, recover, activate."""

    env: str


class Retire(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of an environment."""

    env: str


class Drained(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verb that ends what is under way in an environment first: snapshot, reset.

    ``then``: what becomes of whoever is still at work at the drain deadline (abort, revoke).
    """

    env: str
    then: Then | None = None
    deadline_s: Patience | None = None


class ResetMany(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several environments back to their origins."""

    envs: list[str]
    then: Then | None = None
    deadline_s: Patience | None = None
    task: str | None = None


class Keep(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are taken by themselves, and which generations stay; the answer is what holds then.

    Chosen in the contract's words, until something else is. ``contract``: as that says; None: as it is.
    """

    env: str
    snapshots: str | None = None
    retention: str | None = None


class Prune(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let generations go. ``keep`` None: as the contract says."""

    env: str
    keep: str | None = None
    dry_run: bool = False


class Mark(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Call a generation something; an empty text takes that away."""

    ref: str
    text: str


class Restore(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Back to a moment."""

    env: str
    ref: str
    then: Then | None = None
    deadline_s: Patience | None = None
    task: str | None = None


class Fork(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Children of a moment; without names they get some. ``task``: a name under which ``progress`` tells how far the
    making of the moment, and of the children, is.

    ``lent``: for what one child, with a name of the engine's choice, is lent, which is retired when the connection ends
    on which it was asked for, however that comes to pass."""

    ref: str
    n: AtLeastOne = 1
    names: list[str] = []
    task: str | None = None
    lent: str = ""


class Clone(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new environment whose origin is a moment."""

    ref: str
    name: str
    task: str | None = None


class Replay(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Re-execute what led to a moment, and compare. ``states``: also what the stores hold at the end.

    ``task``: a name under which ``progress`` tells how far it is, and, with ``steps``, under which ``step`` leads it:
    then it halts after each step until it is told to go on.
    """

    ref: str
    start: str | None = None
    keep: bool = False
    states: bool = True
    task: str | None = None
    steps: bool = False


class Step(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next step of a replay that halts after each, once it is done.

    ``after``: how many steps the asker has seen. ``then``: what to do after that one: ``on`` to the next (it is waited
    for, a little), ``stop`` there and judge what was done, ``drop`` the replay. None: nothing yet, the asker is still
    there. Who says nothing at all for a while has dropped it.
    """

    task: str
    after: Count = 0
    then: Literal["on", "stop", "drop"] | None = None


class Between(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moments of one history between two ends."""

    good: str
    bad: str


class Diff(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs between two moments, at most ``limit`` changes per resource."""

    before: str
    after: str
    limit: Count = 100
    look: bool = False


class Blame(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which action last changed one thing: ``row`` is TABLE:KEY, ``file`` a path, ``item`` a name that diff gives."""

    ref: str
    row: str | None = None
    file: str | None = None
    item: str | None = None
    resource: str | None = None
    thorough: bool = False
    task: str | None = None


class Export(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a moment. ``task``: a name under which ``progress`` tells how far it is."""

    ref: str
    path: str  # absolute
    ends: bool = False
    base: bool = True
    secrets: bool = False
    task: str | None = None


class Import(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment of a file."""

    path: str  # absolute
    name: str | None = None
    task: str | None = None


class Watched(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far that is which was asked for with this ``task``."""

    task: str


class Collect(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remove what nothing reaches. ``task``: a name under which ``progress`` tells how far it is."""

    task: str | None = None


class ReplayDropped(StateforkError):
    """Who led a replay step by step has dropped it, or is gone; what it was re-executed in is retired."""

    code = "replay_dropped"


class RemoteError(StateforkError):
    """An error that the engine reported. Its ``code`` is the engine's."""

    code = "remote"


def error_object(error: StateforkError) -> dict[str, Any]:
    """An error as JSON."""
    plain: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint, "facts": error.facts}
    if error.failed:
        plain["failed"] = {name: error_object(part) for name, part in error.failed.items()}
    return plain


def error_from(told: dict[str, Any]) -> StateforkError:
    """The error that an engine told of."""
    error = RemoteError(str(told.get("message", "")), hint=str(told.get("hint", "")), **dict(told.get("facts") or {}))
    error.code = str(told.get("code", RemoteError.code))  # type: ignore[misc]  # of this one instance only
    error.failed = {name: error_from(part) for name, part in dict(told.get("failed") or {}).items()}
    return error
