"""Names on the server, and what a branch's user may do there.

A branch has one token; its keys and channels begin with ``sf-<tag>:<token>:`` and its user is ``sf-<tag>-<token>``. The
tag is of the journal and the resource. No name has a character that means something in a pattern.
"""

from __future__ import annotations

import hashlib
import secrets

_TAG_DIGITS = 16
_TOKEN_BYTES = 8

_KINDS = (
    *("keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo"),
    *("stream", "pubsub", "transaction", "scripting", "blocking", "connection"),
)
_MORE = ("sort", "sort_ro", "time", "command", "acl|whoami")
_NEVER = (
    *("scan", "randomkey", "dbsize"),  # they show, or count, the keys of all environments
    *("select", "move", "swapdb"),
    *("function", "fcall", "fcall_ro", "script|flush", "script|kill"),  # what they change is the server's
    *("pubsub", "client|tracking", "client|caching", "client|trackinginfo"),  # they tell of others' keys and channels
)
COMMANDS = (
    "-@all",
    *(f"+@{kind}" for kind in _KINDS),
    *("-@admin", "-@dangerous"),
    *(f"+{command}" for command in _MORE),
    *(f"-{command}" for command in _NEVER),
)
"""The rules for commands: what only reads and writes the branch's own keys."""

NO_COMMANDS = ("-@all",)


class Names:
    """The names of one resource of one journal."""

    def __init__(self, journal: str, resource: str) -> None:
        tag = hashlib.sha256(f"{journal}\0{resource}".encode()).hexdigest()[:_TAG_DIGITS]
        self.all_keys = f"sf-{tag}:"
        self._users = f"sf-{tag}-"

    def new_token(self) -> str:
        """A token that was never used before."""
        return secrets.token_hex(_TOKEN_BYTES)

    def prefix(self, token: str) -> str:
        """How the keys of a branch begin."""
        return f"{self.all_keys}{token}:"

    def user(self, token: str) -> str:
        """Who opens a branch."""
        return f"{self._users}{token}"

    def rules(self, token: str, secret: str) -> tuple[str, ...]:
        """All that a branch's user is: only the hash of the secret reaches the server."""
        prefix = self.prefix(token)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        return ("reset", "on", f"#{digest}", "resetchannels", f"~{prefix}*", f"&{prefix}*", *COMMANDS)
