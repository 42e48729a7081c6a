"""Errors over HTTP: one form (RFC 9457, ``application/problem+json``) with the stable codes, and the status of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

import statefork.replay.export.errors
import statefork.replay.search  # noqa: F401 -- both, so that the classes of all errors are known
from statefork.adapters.interfaces.cli.faults import InternalError, UsageError
from statefork.adapters.interfaces.control.protocol import RemoteError, error_object
from statefork.engine.errors import ContractError, PartialFailure, PartialFork
from statefork.journal.errors import StateforkError

__all__ = ["InternalError", "Problem", "UsageError", "error_of", "problem", "status_of"]

MEDIA_TYPE = "application/problem+json"

STATUSES: Mapping[str, int] = {
    "usage": 400,
    "invalid_name": 400,
    "invalid_key": 400,
    "out_of_range": 400,
    "unauthorised": 401,
    "forbidden_origin": 403,
    "blob_missing": 404,
    "unknown_environment": 404,
    "unknown_ref": 404,
    "action_failed": 409,
    "claim_lost": 409,
    "diverged": 409,
    "environment_elsewhere": 409,
    "environment_exists": 409,
    "environment_frozen": 409,
    "held_by_caller": 409,
    "illegal_transition": 409,
    "in_doubt": 409,
    "key_reused": 409,
    "lease_revoked": 409,
    "not_ready": 409,
    "partial_failure": 409,
    "partial_fork": 409,
    "replay_dropped": 409,
    "resource_busy": 409,
    "stale_generation": 409,
    "transition_aborted": 409,
    "environment_retired": 410,
    "generation_pruned": 410,
    "body_too_large": 413,
    "limit_exceeded": 413,
    "foreign_host": 421,
    "limit_reached": 429,
    "error": 422,  # whatever has no status of its own, or of a kind that it is of
    "internal": 500,
    "journal": 500,
    "resource_failed": 502,
    "resource_unreachable": 502,
    "engine_closed": 503,
    "journal_unavailable": 503,
    "no_slot": 503,
    "action_timeout": 504,
    "observation_lost": 504,
}
"""By code. An error whose code is not here has the status of the nearest kind that it is of."""


class Unauthorised(StateforkError):
    """The request bears no token, or another than the engine's."""

    code = "unauthorised"


class ForbiddenOrigin(StateforkError):
    """A page of another origin asked for it: only programs and pages of this address may."""

    code = "forbidden_origin"


class ForeignHost(StateforkError):
    """The request names a host that this address does not answer for."""

    code = "foreign_host"


class BodyTooLarge(StateforkError):
    """The body is longer than any may be. ``facts``: limit."""

    code = "body_too_large"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. ``code`` is stable, ``hint`` says what to do now, ``facts`` are short named values.

    ``failed``: where several things were asked for at once, the error of each that failed, by name.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    facts: dict[str, str | int | float | bool | None] = {}
    failed: dict[str, dict[str, Any]] = {}


def status_of(error: StateforkError) -> int:
    """The status of an error."""
    if error.code in STATUSES:
        return STATUSES[error.code]
    codes = (kind.__dict__.get("code", "") for kind in type(error).__mro__)
    return next(STATUSES[code] for code in codes if code in STATUSES)


def problem(error: StateforkError) -> Problem:
    """An error as it is sent."""
    told = error_object(error)
    return Problem(
        type=f"urn:statefork:error:{error.code}",
        title=error.code.replace("_", " "),
        status=status_of(error),
        detail=told["message"],
        code=told["code"],
        hint=told["hint"],
        facts=told["facts"],
        failed=told.get("failed", {}),
    )


@cache
def _kinds() -> Mapping[str, type[StateforkError]]:
    found: dict[str, type[StateforkError]] = {}
    waiting: list[type[StateforkError]] = [StateforkError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found


def error_of(told: Mapping[str, Any]) -> StateforkError:
    """The error that was told, of its own class where that is known here."""
    code = str(told.get("code", RemoteError.code))
    kind = _kinds().get(code, RemoteError)
    error = kind.__new__(kind)
    message, hint = str(told.get("detail", told.get("message", ""))), str(told.get("hint", ""))
    StateforkError.__init__(error, message, hint=hint, **dict(told.get("facts") or {}))
    error.code = code  # type: ignore[misc]  # of this one instance only
    error.failed = {name: error_of(part) for name, part in dict(told.get("failed") or {}).items()}
    if isinstance(error, ContractError):
        error.problems = ()
    if isinstance(error, PartialFork):
        error.born = _names(error.facts["born"])
    if isinstance(error, PartialFailure):
        error.done = _names(error.facts["done"])
    return error


def _names(told: object) -> tuple[str, ...]:
    return tuple(filter(None, str(told).split(", ")))
