"""Errors of the command line itself, and which exit status each error gives.

===  ====================================================================================
0    it was done, or what was asked about is as it should be
1    it was tried and is not as it should be: audit violations, a divergence, a failed action or transition
2    it can't be done: wrong usage, something missing, locked or unreadable, no engine running
3    the outcome is unknown or unproven: look before trying again
130  interrupted
===  ====================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from statefork.adapters.interfaces.control.client import EngineLost
from statefork.adapters.interfaces.control.protocol import error_object
from statefork.adapters.interfaces.store.errors import StoreFull, StoreLost
from statefork.engine.errors import (
    ActionFailed,
    ActionTimeout,
    Diverged,
    InDoubt,
    LeaseRevoked,
    ObservationLost,
    PartialFailure,
    PartialFork,
    ResourceFailed,
    RuntimeDied,
    TransitionAborted,
)
from statefork.journal.errors import AppendUnknown, StateforkError

EXIT_OK = 0
EXIT_NOT_AS_IT_SHOULD_BE = 1
EXIT_CANNOT = 2
EXIT_UNKNOWN = 3
EXIT_INTERRUPTED = 130

_REASONS_TOLD = 20

_UNKNOWN = (ActionTimeout, ObservationLost, LeaseRevoked, InDoubt, AppendUnknown, RuntimeDied, EngineLost)


class UsageError(StateforkError):
    """The command line was not understood."""

    code = "usage"


class InternalError(StateforkError):
    """A defect in statefork: the traceback is shown when STATEFORK_DEBUG=1 is set."""

    code = "internal"


class NotParked(StateforkError):
    """The engine was closed, and could not park every environment: their tails are lost."""

    code = "not_parked"


_FAILED = (
    *(NotParked, ActionFailed, Diverged, TransitionAborted, PartialFailure, PartialFork, ResourceFailed, InternalError),
    *(StoreFull, StoreLost),
)


def _codes(kinds: tuple[type[StateforkError], ...]) -> frozenset[str]:
    found = {kind.code for kind in kinds}
    for kind in kinds:
        found |= _codes(tuple(kind.__subclasses__()))
    return frozenset(found)


def exit_status(code: str) -> int:
    """The exit status of an error, by its code: errors that an engine reported from afar have no class here."""
    if code in _codes(_UNKNOWN):
        return EXIT_UNKNOWN
    return EXIT_NOT_AS_IT_SHOULD_BE if code in _codes(_FAILED) else EXIT_CANNOT


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("STATEFORK_DEBUG", "") not in ("", "0")


def one_line(error: StateforkError) -> str:
    """The error as the one line that people see; of several problems or failures at once, a line for each."""
    several = len(getattr(error, "problems", ())) > 1  # as errors of contracts and of tasks have them
    lines = error.message.splitlines() if several else [error.message]
    text = f"error[{error.code}]: " + "\n  ".join(" ".join(line.split()) for line in lines)
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    text = f"{text} {' '.join(error.hint.split())}".rstrip()
    if len(error.failed) > 1:
        text = "\n  ".join([text, *_reasons(error)])
    return text


def _reasons(error: StateforkError) -> Iterator[str]:
    """Why each of several failed; the others with it, where there are very many."""
    for name, part in islice(error.failed.items(), _REASONS_TOLD):
        yield f"{name}: {one_line(part)}"
    if len(error.failed) > _REASONS_TOLD:
        yield f"and {len(error.failed) - _REASONS_TOLD} more: --json has them all"


def as_json(error: StateforkError) -> dict[str, Any]:
    """The error as scripts see it."""
    return {"error": {**error_object(error), "exit_status": exit_status(error.code)}}
