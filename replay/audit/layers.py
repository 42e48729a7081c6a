"""I6 on disk: writable branches share nothing with each other, and nothing writable is part of a sealed version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.records import Stored, branch_records, sealed_records
from statefork.replay.audit.spill import open_spill

_SCHEMA = """
create table layer (resource text, layer text, version text, primary key (resource, layer)) without rowid;
create table written (resource text, place text, branch text, primary key (resource, place)) without rowid;
"""


class Layers(Checker):
    """Looks at the stores' records, after the last row of the journal."""

    invariant = "I6"
    rule = "on disk, no branch writes what another branch or a sealed version uses"

    def __init__(self, state: Path, heads: Heads) -> None:
        super().__init__(heads)
        self._state = state
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def finish(self) -> Iterator[str]:
        for record in sealed_records(self._state):
            self.looked_at += 1
            yield from self._sealed(record)
        for record in branch_records(self._state):
            self.looked_at += 1
            for place in (record.upper, record.path):
                if place:
                    yield from self._written(record, place)

    def _sealed(self, record: Stored) -> Iterator[str]:
        for layer in record.layers:
            self._spill.execute("insert or ignore into layer values (?, ?, ?)", (record.resource, layer, record.name))
            if not (self._state / "resources" / record.resource / "layers" / layer).is_dir():
                yield f"version {record.name} of {record.resource} is built on layer {layer}, which is gone"

    def _written(self, record: Stored, place: str) -> Iterator[str]:
        resource, branch = record.resource, record.name
        layer = self._spill.execute(
            "select version from layer where resource = ? and layer = ?", (resource, place)
        ).fetchone()
        if layer is not None:
            yield f"branch {branch} of {resource} writes layer {place}, which the sealed version {layer[0]} is made of"
        other = self._spill.execute(
            "select branch from written where resource = ? and place = ?", (resource, place)
        ).fetchone()
        if other is not None:
            yield f"branches {other[0]} and {branch} of {resource} both write {place}"
        self._spill.execute("insert or ignore into written values (?, ?, ?)", (resource, place, branch))
