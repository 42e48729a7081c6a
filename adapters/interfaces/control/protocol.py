"""What is said through the control door: one request Struct per verb, answers as plain JSON objects.

``POST /v1/<verb>`` with the request as its body. An error answers with ``{"error": {code, message, hint, facts}}``, and
with ``failed`` where several things were asked for at once: the error of each that failed, by name.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from statefork.journal.errors import StateforkError
from statefork.journal.values import Json

Then = Literal["abort", "revoke"]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all requests."""


class Status(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is served. With ``cost``, memory and private bytes are measured, which takes a while."""

    cost: bool = False


class Keyed(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the requests that may be repeated: with the same ``key`` the same request gets the same answer."""

    key: str | None = None


class Create(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new environment."""

    name: str


class CreateMany(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several new environments."""

    names: list[str]


class Act(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action; ``action`` None: look without acting."""

    env: str
    action: dict[str, Json] | None = None
    timeout_s: float | None = None


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
    deadline_s: float | None = None


class ResetMany(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several environments back to their origins."""

    envs: list[str]
    then: Then | None = None
    deadline_s: float | None = None


class Restore(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Back to a moment."""

    env: str
    ref: str
    then: Then | None = None
    deadline_s: float | None = None


class Fork(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Children of a moment; without names they get some."""

    ref: str
    n: int = 1
    names: list[str] = []


class Clone(Keyed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new environment whose origin is a moment."""

    ref: str
    name: str


class Replay(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Re-execute and compare."""

    env: str
    keep: bool = False


class Nothing(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verb that needs nothing: gc."""


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
