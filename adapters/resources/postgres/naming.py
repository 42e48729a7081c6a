"""Names on a server that belong to one resource of one journal, so that nothing else is ever touched.

A database and the role that opens it have one name: ``sf_<tag>_<kind><nonce>``. The tag is 96 bits of a hash of the
journal's id, the resource's name and the state directory; names are compared whole, never by pattern, so that
neighbours which merely look alike are somebody else's.
"""

from __future__ import annotations

import hashlib
import re
import secrets

VERSION = "v"  # sealed: a template that nobody can connect to
BRANCH = "b"  # of an environment, or waiting in the pool for one
SCRATCH = "s"  # a version's copy for reading, or a base that is just being imported
_TAG_DIGITS = 24
_NONCE_BYTES = 6


class Names:
    """The names of one resource of one journal, as kept by one state directory.

    Several engines may share a journal, and a server, and each has databases that no other one knows of: hence
    ``place``, which tells their state directories apart.
    """

    def __init__(self, journal: str, resource: str, place: str) -> None:
        digest = hashlib.sha256(f"{journal}\0{resource}\0{place}".encode()).hexdigest()
        self._prefix = f"sf_{digest[:_TAG_DIGITS]}_"
        self._ours = re.compile(
            re.escape(self._prefix) + rf"[{VERSION}{BRANCH}{SCRATCH}][0-9a-f]{{{2 * _NONCE_BYTES}}}"
        )
        self.owner = f"{self._prefix}app"
        """The role that owns the objects in every database of this resource; nobody logs in as it."""

    def new(self, kind: str) -> str:
        """A name that was never used before."""
        return f"{self._prefix}{kind}{secrets.token_hex(_NONCE_BYTES)}"

    def is_ours(self, name: str) -> bool:
        """Whether a database or a login role of this name is of this journal and resource."""
        return self._ours.fullmatch(name) is not None
