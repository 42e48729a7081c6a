"""What both sides of the interface have to spell alike: headers, and where the token stands."""

from __future__ import annotations

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""The key of a command that may be given again."""
LAST_ID_HEADER = "Last-Event-ID"
"""The position behind which a stream of events goes on."""
TOLD_HEADER = "Statefork-Exported"
"""What an export tells besides its file, as JSON."""
TOKEN_NAME = "http.token"
"""The file of the state directory that has the token."""
TOKEN_VARIABLE = "STATEFORK_HTTP_TOKEN"
"""The environment variable that says it instead."""
