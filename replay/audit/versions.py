"""Every sealed version that the journal reaches: which generation named it first, and how it was described there.

Reached until its last generation is pruned: even those of a retired environment can still be forked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = """
create table version (owner text, resource text, version text, path text, whose text, at int, described text,
                      primary key (owner, resource, version)) without rowid;
create table need (owner text, resource text, version text, whose text, primary key (owner, resource, version, whose))
    without rowid;
create index need_whose on need (whose);
"""
_NEEDED = "exists (select 1 from need where (owner, resource, version) = (v.owner, v.resource, v.version))"


class Version(NamedTuple):
    """One version. ``path`` is where its handle says that it lies, under the state directory; it may say nothing.

    ``owner``: the journal's id, or the place's where several state directories share it.
    """

    owner: str
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
            owner, version = str(sealed.get("journal", "")), sealed["version"]
            self._spill.execute("insert or ignore into need values (?, ?, ?, ?)", (owner, resource, version, whose))
            data = sealed.get("data")
            path = data.get("path") if isinstance(data, dict) else None
            self._spill.execute(
                "insert or ignore into version values (?, ?, ?, ?, ?, ?, ?)",
                Version(
                    owner,
                    resource,
                    version,
                    path if isinstance(path, str) else "",
                    whose,
                    row.position,
                    described(sealed),
                ),
            )

    def let_go(self, whose: Iterable[str]) -> None:
        """These generations need nothing any more."""
        self._spill.executemany("delete from need where whose = ?", [(one,) for one in whose])

    def find(self, owner: str, resource: str, version: str) -> Version | None:
        """A version that something needs, if anything does; ``whose`` is the first that did, or another that does."""
        found = self.named(owner, resource, version)
        if found is None:
            return None
        needed = self._spill.execute(
            "select whose from need where (owner, resource, version) = (?, ?, ?) order by whose <> ? limit 1",
            (owner, resource, version, found.whose),
        ).fetchone()
        return None if needed is None else found._replace(whose=needed[0])

    def named(self, owner: str, resource: str, version: str) -> Version | None:
        """A version that was named, if it was, needed or not."""
        found = self._spill.execute(
            "select * from version where owner = ? and resource = ? and version = ?", (owner, resource, version)
        ).fetchone()
        return None if found is None else Version(*found)

    def of(self, owner: str) -> Iterator[Version]:
        """Every version of one owner that something needs."""
        for found in self._spill.execute(f"select * from version v where owner = ? and {_NEEDED}", (owner,)):
            yield Version(*found)


def described(handle: Mapping[str, Any]) -> str:
    """The same for handles that say the same, whatever the order in which they say it."""
    return hashlib.sha256(json.dumps(handle, sort_keys=True).encode()).hexdigest()
