"""What both sides of the interface have to spell alike: headers, and where the token stands."""

from __future__ import annotations

from statefork.journal.errors import StateforkError

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""The key of a command that may be given again."""
LAST_ID_HEADER = "Last-Event-ID"
"""The position behind which a stream of events goes on."""
TOLD_HEADER = "Statefork-Exported"
"""What an export tells besides its file, as JSON."""
SENT_FILE = "the file that was sent"
"""What an import's errors call the file: where it lay meanwhile tells its sender nothing. Clients know its path."""
TOKEN_NAME = "http.token"
"""The file of the state directory that has the token."""
TOKEN_VARIABLE = "STATEFORK_HTTP_TOKEN"
"""The environment variable that says it instead."""


def calling_it(error: StateforkError, before: str, now: str) -> StateforkError:
    """The same error, which calls a file otherwise than it did."""
    error.message = error.message.replace(before, now)
    error.args = (error.message,)
    error.facts = {name: now if value == before else value for name, value in error.facts.items()}
    return error
