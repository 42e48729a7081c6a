"""The root of every statefork exception, and the faults of the journal itself.

Every exception carries a stable ``code`` (safe to match on, shown by the CLI, sent over HTTP), the facts that a person
needs (environment, generations, positions) in ``facts``, and a ``hint``: what to do now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class StateforkError(Exception):
    """Base of all statefork errors.

    ``facts`` are short named values that machines may read; ``hint`` tells a person the next step. Where several things
    were asked for at once, ``failed`` has the error of each that failed, by name.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self, message: str | StateforkError, *, hint: str = "", **facts: str | int | float | bool | None
    ) -> None:
        if isinstance(message, StateforkError):  # made of another: so some hand errors on between processes
            hint, facts = hint or message.hint, {**message.facts, **facts}
            message = message.message
        super().__init__(message)
        self.message: str = message
        self.hint: str = hint
        self.facts: dict[str, str | int | float | bool | None] = facts
        self.failed: Mapping[str, StateforkError] = {}

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class JournalError(StateforkError):
    """A fault of the journal."""

    code = "journal"


class JournalCorrupt(JournalError):
    """A stored event does not fit the hash chain, has a gap, or can't be decoded."""

    code = "journal_corrupt"


class JournalUnavailable(JournalError):
    """The journal could not make an append durable (disk full, I/O error, closed). Nothing of the batch was kept."""

    code = "journal_unavailable"


class AppendUnknown(JournalUnavailable):
    """The journal's server gave no answer and can't be asked yet: what became of the append is read back later."""

    code = "append_unknown"


class ClaimLost(JournalError):
    """Another engine has taken over what this one wrote to; the append was refused, and nothing of it was kept."""

    code = "claim_lost"


class ClaimHeld(JournalError):
    """Another engine holds the claim on a stream; ``facts``: stream, holder, expires_s."""

    code = "claim_held"


class ExpectationFailed(JournalError):
    """A stream was not at the version that the append expected: somebody else wrote to it first."""

    code = "expectation_failed"


class StateLocked(JournalError):
    """The state directory is open for writing already: in another process, or in this one."""

    code = "state_locked"


class BlobMissing(JournalError):
    """A blob named by its digest is not in the store, or its bytes do not give that digest."""

    code = "blob_missing"


class LimitExceeded(JournalError):
    """A declared limit would be passed; ``facts`` names the limit and the value."""

    code = "limit_exceeded"


class EventInvalid(JournalError):
    """An event can't be written: its values have no JSON form that reads back as the same event."""

    code = "event_invalid"


class StateForeign(JournalError):
    """The directory has no journal and is not empty: it belongs to something else, and nothing is written into it."""

    code = "state_foreign"


class StateMissing(JournalError):
    """There is no journal at the named place, or it is empty, so there is nothing to read."""

    code = "state_missing"


def closed() -> JournalUnavailable:
    """The error of a journal that is no longer open."""
    return JournalUnavailable("The journal is closed", hint="Open the engine again")
