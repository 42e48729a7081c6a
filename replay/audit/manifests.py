"""I4: a manifest names every required resource of the contract exactly once, each sealed, all of one cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.contracts import Contracts, Wanted
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = "create table cut (env text, generation int, digest text, primary key (env, generation)) without rowid;"
_COPIES = frozenset({"reset", "restore", "recover", "fork", "clone"})  # publish exactly what their source holds
_REQUIRED = ("authoritative", "derived")


class Manifests(Checker):
    """Manifests fit the registered contract, bear this journal's handles, and copies equal what they copy."""

    invariant = "I4"
    rule = "manifests name every required resource once, sealed in one cut"
    kinds = frozenset({kinds.CONTRACT, kinds.PROVISIONED, kinds.PUBLISHED})

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._contracts = Contracts()
        self._bases: dict[str, set[str]] = {}  # contract -> digests of its provisioned manifests
        self._cuts = open_spill(_SCHEMA)

    def close(self) -> None:
        self._cuts.close()

    def look(self, row: Row) -> Iterator[str]:
        match row.kind:
            case kinds.CONTRACT:
                why = self._contracts.register(row)
                if why:
                    yield why
            case kinds.PROVISIONED:
                self.looked_at += 1
                yield from self._manifest(row)
                self._bases.setdefault(row.text("contract"), set()).add(_digest(row.table("manifest")))
            case kinds.PUBLISHED:
                self.looked_at += 1
                yield from self._manifest(row)
                yield from self._cut(row)
            case _:
                pass

    def _manifest(self, row: Row) -> Iterator[str]:
        whose = row.text("env", "the base")
        owner = self.heads.owner(row.place if row.kind == kinds.PROVISIONED else self.heads.of(whose).place)
        manifest = row.table("manifest")
        for name in row.twice:
            yield f"the manifest of {whose} names {name} twice"
        contract = self._contracts.of(row.text("contract"))
        if contract is None:
            yield f"the manifest of {whose} is of a contract that is not registered: {row.text('contract')}"
            contract = {}
        for name, wanted in contract.items():
            if name not in manifest and wanted.durability in _REQUIRED:
                yield f"the manifest of {whose} lacks {name}"
        for name, component in manifest.items():
            if contract and name not in contract:
                yield f"the manifest of {whose} names {name}, which its contract does not know"
            yield from self._component(whose, owner, name, component, contract.get(name))

    def _component(self, whose: str, owner: str, name: str, component: Any, wanted: Wanted | None) -> Iterator[str]:
        sealed = component.get("sealed") if isinstance(component, dict) else None
        if not isinstance(sealed, dict) or not sealed.get("version"):
            yield f"the manifest of {whose} has {name} without a sealed version"
            return
        if sealed.get("resource") != name:
            yield f"the manifest of {whose} has a version of {sealed.get('resource')} in the place of {name}"
        if owner and sealed.get("journal") != owner:
            other = "journal" if owner == self.heads.journal else "place"
            yield f"the manifest of {whose} has {name} from another {other}: {sealed.get('journal')}"
        if wanted is None:
            return
        if sealed.get("adapter") != wanted.adapter and not (wanted.private and _stands_in(sealed)):
            yield f"{name} of {whose} was sealed by {sealed.get('adapter')}, the contract says {wanted.adapter}"
        if sorted(component.get("depends_on", ())) != sorted(wanted.depends_on):
            said = component.get("depends_on")
            yield f"{name} of {whose} depends on {said}, the contract says {list(wanted.depends_on)}"

    def _cut(self, row: Row) -> Iterator[str]:
        env, generation, op = row.text("env"), row.number("generation"), row.text("op")
        digest = _digest(row.table("manifest"))
        source = row.moment("source")
        if op in _COPIES and source is not None:
            found = self._cuts.execute("select digest from cut where env = ? and generation = ?", source).fetchone()
            if found is None:
                yield f"{op} published {env}@{generation} from {source[0]}@{source[1]}, which was never published"
            elif found[0] != digest:
                yield f"{op} published {env}@{generation} with other components than {source[0]}@{source[1]} has"
        elif op == "create" and digest not in self._bases.get(row.text("contract"), set()):
            yield f"create published {env}@{generation} with other components than the base has"
        elif op in _COPIES - {"recover"}:
            yield f"{op} published {env}@{generation} without saying from where"
        self._cuts.execute("insert or ignore into cut values (?, ?, ?)", (env, generation, digest))


def _stands_in(sealed: Mapping[str, Any]) -> bool:
    """Whether a version is of a private backend, and says so."""
    data = sealed.get("data")
    return sealed.get("adapter") == "process" and isinstance(data, dict) and data.get("strategy") == "private"


def _digest(manifest: Mapping[str, Any]) -> str:
    names = {name: component.get("sealed") for name, component in manifest.items() if isinstance(component, dict)}
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()
