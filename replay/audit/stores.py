"""What the journal refers to is there, and is what it was: blobs of observations and inputs, sealed versions.

The stores are read with nothing but the file system. Blobs are named by the SHA-256 of their bytes and lie in
``blobs/<first two digits>/<the rest>``. A sealed version whose handle names a ``path`` lies there, under the state
directory; stores that keep records have one of each version in ``resources/<name>/sealed``. Blobs stay for ever, and
versions until the last generation that needs them is pruned: even those of a retired environment can still be forked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.places import place_at, unseen
from statefork.replay.audit.records import check_there
from statefork.replay.audit.report import Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import open_spill

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20
_SCHEMA = "create table blob (digest text primary key) without rowid;"


class Stores(Checker):
    """Looks at every blob once, when it is first named, and at the sealed versions after the last row."""

    invariant = "I5"
    rule = "what the journal refers to is in the stores, unchanged"
    kinds = frozenset({kinds.ACTION_ENDED, kinds.INPUT, kinds.EXCHANGED})

    def __init__(self, state: Path, heads: Heads) -> None:
        super().__init__(heads)
        self._state = state
        self._spill = open_spill(_SCHEMA)
        self._place = place_at(state)

    def close(self) -> None:
        self._spill.close()

    def look(self, row: Row) -> Iterator[str]:
        if self.heads.of(row.text("env")).place != self._place:
            return
        match row.kind:
            case kinds.ACTION_ENDED:
                observation = row.data.get("observation")
                if isinstance(observation, dict):
                    for what, digest in _named(observation):
                        yield from self._blob(f"{what} of action {row.number('number')}", digest)
            case kinds.INPUT:
                yield from self._blob(f"the body of {row.text('method')} {row.text('url')}", row.text("body", ""))
            case kinds.EXCHANGED:
                yield from self._blob(f"the answer to {row.text('method')} {row.text('url')}", row.text("answer", ""))
            case _:
                pass

    def _blob(self, what: str, digest: str) -> Iterator[str]:
        if not digest or self._spill.execute("select 1 from blob where digest = ?", (digest,)).fetchone():
            return
        self._spill.execute("insert into blob values (?)", (digest,))
        self.looked_at += 1
        if not _DIGEST.fullmatch(digest):
            yield f"{what} is named by {digest!r}, which is no digest"
            return
        path = self._state / "blobs" / digest[:2] / digest[2:]
        try:
            found = _digest(path)
        except FileNotFoundError:
            yield f"{what} is not in the store: blob {digest}"
        except OSError as error:
            raise Unreadable(f"blob {digest} can't be read: {error.strerror}") from None
        else:
            if found != digest:
                yield f"{what} was changed: the bytes of blob {digest} give {found}"

    def finish(self) -> Iterator[str]:
        for version in self.heads.versions.of(self.heads.owner(self._place)):
            check_there(self._state)
            places = [self._state / version.path] if version.path else []
            records = self._state / "resources" / version.resource / "sealed"
            if records.is_dir():
                places.append(records / f"{version.version}.json")
            for place in places:
                self.looked_at += 1
                try:
                    place.lstat()
                except FileNotFoundError:
                    yield f"{version}, lacks {place.relative_to(self._state)}"
                except OSError as error:
                    raise Unreadable(f"{version}, can't be looked at: {error.strerror}") from None

    def notes(self) -> Iterator[str]:
        if sentence := unseen(self.heads, self._place):
            yield sentence


def _named(observation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for what in ("snapshot", "screenshot"):
        digest = observation.get(what)
        if isinstance(digest, str) and digest:
            yield f"the {what}", digest
    parts = observation.get("parts")
    if isinstance(parts, dict):
        for name, digest in parts.items():
            yield f"the part {name!r}", str(digest)
    rest = observation.get("rest")
    if isinstance(rest, dict):
        yield from ((f"{what} without what is masked", digest) for what, digest in _named(rest))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
