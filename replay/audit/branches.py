"""I6: two live environments never share a writable branch, and a sealed version is never written.

Bindings are not journaled, but what was sealed through a shared branch is: a version that first appeared in one
environment can reach another's manifest only by descent (its source, its own last generation, the base). And a version,
once described, is described the same way ever after; two versions of a resource never live at one path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill
from statefork.replay.audit.versions import described

_BASE = ""  # stands for the environment that the provisioned bases belong to: nobody
_SCHEMA = """
create table version (owner text, resource text, version text, env text, at int, described text,
                      primary key (owner, resource, version)) without rowid;
create table member (env text, generation int, resource text, version text,
                     primary key (env, generation, resource)) without rowid;
create table place (owner text, resource text, path text, version text,
                    primary key (owner, resource, path)) without rowid;
"""


class Branches(Checker):
    """Follows each sealed version from where it first appeared."""

    invariant = "I6"
    rule = "no writable branch is shared, no sealed version changes"
    kinds = frozenset({kinds.PUBLISHED, kinds.PROVISIONED})

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        base = row.kind == kinds.PROVISIONED
        env = _BASE if base else row.text("env")
        generation = row.position if base else row.number("generation")
        source = None if base else row.moment("source")
        for name, sealed in row.sealed():
            self.looked_at += 1
            yield from self._version(row, env, source, name, sealed)
            self._spill.execute(
                "insert or ignore into member values (?, ?, ?, ?)", (env, generation, name, sealed["version"])
            )

    def _version(
        self, row: Row, env: str, source: tuple[str, int] | None, name: str, sealed: Mapping[str, Any]
    ) -> Iterator[str]:
        owner, version, handle = str(sealed.get("journal", "")), sealed["version"], described(sealed)
        known = self._spill.execute(
            "select env, at, described from version where owner = ? and resource = ? and version = ?",
            (owner, name, version),
        ).fetchone()
        if known is None:
            self._spill.execute(
                "insert into version values (?, ?, ?, ?, ?, ?)", (owner, name, version, env, row.position, handle)
            )
            yield from self._place(owner, name, version, sealed)
            return
        first, at, was = known
        if was != handle:
            yield f"version {version} of {name} is not what it was at position {at}: a sealed version was written"
        if first not in (env, _BASE) and not self._descends(env, source, name, version):
            yield (
                f"{env} publishes version {version} of {name}, which {first} sealed (position {at}), "
                f"without descending from it: they shared a writable branch"
            )

    def _place(self, owner: str, name: str, version: str, sealed: Mapping[str, Any]) -> Iterator[str]:
        data = sealed.get("data")
        path = data.get("path") if isinstance(data, dict) else None
        if not isinstance(path, str):
            return
        held = self._spill.execute(
            "select version from place where owner = ? and resource = ? and path = ?", (owner, name, path)
        ).fetchone()
        if held is not None:
            yield f"versions {held[0]} and {version} of {name} both lie at {path}: a sealed version was overwritten"
        self._spill.execute("insert or ignore into place values (?, ?, ?, ?)", (owner, name, path, version))

    def _descends(self, env: str, source: tuple[str, int] | None, name: str, version: str) -> bool:
        moments = [(env, self.heads.of(env).generation)]
        if source is not None:
            moments.append(source)
        for moment in moments:
            found = self._spill.execute(
                "select version from member where env = ? and generation = ? and resource = ?", (*moment, name)
            ).fetchone()
            if found is not None and found[0] == version:
                return True
        return False
