"""Every sealed version that the journal reaches: which generation named it first, and how it was described there.

Reached for ever: even the generations of a retired environment can still be forked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = """
create table version (resource text, version text, path text, whose text, at int, described text,
                      primary key (resource, version)) without rowid;
"""


class Version(NamedTuple):
    """One version. ``path`` is where its handle says that it lies, under the state directory; it may say nothing."""

    resource: str
    version: str
    path: str
    whose: str  # "shop-1@3", or "the base"
    position: int
    described: str  # a digest of the whole handle

    def __str__(self) -> str:
        return f"version {self.version} of {self.resource}, which {self.whose} needs (position {self.position})"


class Versions:
    """Told of every manifest, in journal order."""

    def __init__(self) -> None:
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        """Let go of everything."""
        self._spill.close()

    def note(self, row: Row, whose: str) -> None:
        """The versions of a manifest that was published or provisioned."""
        for resource, sealed in row.sealed():
            data = sealed.get("data")
            path = data.get("path") if isinstance(data, dict) else None
            self._spill.execute(
                "insert or ignore into version values (?, ?, ?, ?, ?, ?)",
                Version(
                    resource,
                    sealed["version"],
                    path if isinstance(path, str) else "",
                    whose,
                    row.position,
                    described(sealed),
                ),
            )

    def find(self, resource: str, version: str) -> Version | None:
        """A version that was named, if it was."""
        found = self._spill.execute(
            "select * from version where resource = ? and version = ?", (resource, version)
        ).fetchone()
        return None if found is None else Version(*found)

    def __iter__(self) -> Iterator[Version]:
        for found in self._spill.execute("select * from version"):
            yield Version(*found)


def described(handle: Mapping[str, Any]) -> str:
    """The same for handles that say the same, whatever the order in which they say it."""
    return hashlib.sha256(json.dumps(handle, sort_keys=True).encode()).hexdigest()
