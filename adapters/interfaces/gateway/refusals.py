"""What the gateway says no with: a status and a JSON body that a machine can match on."""

from __future__ import annotations

import msgspec

from statefork.engine.errors import (
    EnvironmentElsewhere,
    EnvironmentFrozen,
    EnvironmentRetired,
    NotReady,
    StaleGeneration,
    UnknownEnvironment,
)
from statefork.journal.errors import StateforkError

RETRY_AFTER_S = 1

Headers = list[tuple[bytes, bytes]]


class Refused(Exception):
    """A request that is turned away. ``journaled``: the kernel has written it down already."""

    def __init__(self, status: int, code: str, message: str, *, journaled: bool = False, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.facts: dict[str, str | int | float | bool | None] = {}
        self.journaled = journaled
        self.close = close  # the connection's state can't be trusted any more

    def answer(self) -> tuple[Headers, bytes]:
        """Headers and body of the response."""
        body = msgspec.json.encode({"code": self.code, "message": self.message, **self.facts})
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", str(len(body)).encode()),
            (b"Cache-Control", b"no-store"),
            (b"Statefork-Code", self.code.encode()),
        ]
        if self.status == 503:
            headers.append((b"Retry-After", str(RETRY_AFTER_S).encode()))
        if self.close:
            headers.append((b"Connection", b"close"))
        return headers, body


_STATUS: tuple[tuple[type[StateforkError], int], ...] = (
    (EnvironmentFrozen, 503),
    (NotReady, 503),
    (StaleGeneration, 409),
    (UnknownEnvironment, 421),
    (EnvironmentElsewhere, 421),
    (EnvironmentRetired, 421),
)


def refusal_of(error: StateforkError) -> Refused:
    """How a refused admission is told to the client."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    refused = Refused(status, error.code, error.message, journaled=True)
    refused.facts = dict(error.facts)
    return refused
