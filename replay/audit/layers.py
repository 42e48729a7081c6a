"""I6 on disk: writable branches share nothing with each other, and nothing writable is part of a sealed version.

The stores of databases and file trees keep a record of each version (``resources/<name>/sealed/<version>.json``: its
handle, and the layers it is made of) and of each open branch (``branches/<id>.json``: its handle, the layers below it,
and ``upper``, the one it writes, where it has one). They are read here as plain JSON, and compared with each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_SCHEMA = """
create table layer (resource text, layer text, version text, primary key (resource, layer)) without rowid;
create table written (resource text, place text, branch text, primary key (resource, place)) without rowid;
"""


class Layers(Checker):
    """Looks at the records after the last row of the journal."""

    invariant = "I6"
    rule = "on disk, no branch writes what another branch or a sealed version uses"

    def __init__(self, state: Path, heads: Heads) -> None:
        super().__init__(heads)
        self._state = state
        self._spill = open_spill(_SCHEMA)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        return iter(())

    def finish(self) -> Iterator[str]:
        for folder in sorted((self._state / "resources").glob("*")):
            yield from self._sealed(folder)
            yield from self._branches(folder)

    def _sealed(self, folder: Path) -> Iterator[str]:
        for version, record in _records(folder / "sealed"):
            self.looked_at += 1
            for layer in record.get("layers", ()):
                self._spill.execute("insert or ignore into layer values (?, ?, ?)", (folder.name, layer, version))
                if not (folder / "layers" / layer).is_dir():
                    yield f"version {version} of {folder.name} is built on layer {layer}, which is gone"

    def _branches(self, folder: Path) -> Iterator[str]:
        for branch, record in _records(folder / "branches"):
            self.looked_at += 1
            handle = record.get("handle")
            data = handle.get("data") if isinstance(handle, dict) else None
            path = data.get("path") if isinstance(data, dict) else None
            for place in (record.get("upper"), path):
                if isinstance(place, str) and place:
                    yield from self._written(folder.name, branch, place)

    def _written(self, resource: str, branch: str, place: str) -> Iterator[str]:
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


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each record of a folder. What vanishes meanwhile (an engine is running) is left out."""
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unreadable(f"{path} can't be read: {error.strerror}") from None
        except ValueError as error:
            raise Unreadable(f"{path} is not JSON: {error}") from None
        if isinstance(record, dict):
            yield path.stem, record
