"""I10: the journal is append-only, hash-chained and gap-free per stream, and its fold is what it says it is.

The chain's rule, written down here a second time: the hash of an event is the SHA-256 of the previous hash of its
stream (64 zeros before the first), the stream's name and the version, each followed by a line feed, and then the
event's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row
from statefork.replay.audit.spill import Kept

_ZERO = "0" * 64
_NONE = (0, _ZERO)


class Chain(Checker):
    """Positions and versions without holes, every hash right, every action counted once along its lineage."""

    invariant = "I10"
    rule = "append-only: no gap, every hash fits, every action counted"
    kinds = None

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._position = 0
        self._tails: Kept[tuple[int, str]] = Kept()  # stream -> (version, hash) of its last event
        self.kept_heads: Iterable[tuple[str, int, str]] | None = None  # what the file says each stream ends with

    def close(self) -> None:
        self._tails.close()

    def look(self, row: Row) -> Iterator[str]:
        self.looked_at += 1
        if row.position != self._position + 1:
            yield f"position {row.position} follows {self._position}: events are missing or out of order"
        self._position = row.position
        version, digest = self._tails.get(row.stream) or _NONE
        if row.version != version + 1:
            yield f"event {row.version} of {row.stream} follows event {version}"
        if _link(digest, row) != row.digest:
            yield f"event {row.version} of {row.stream} does not fit its hash: it, or one before it, was changed"
        self._tails.put(row.stream, (row.version, row.digest))
        if row.broken:
            return
        if row.position == 1 and row.kind != kinds.JOURNAL:
            yield f"the first event is {row.kind}, not the journal's creation"
        if row.position > 1 and row.kind == kinds.JOURNAL:
            yield "the journal is created a second time"
        if row.twice and row.kind not in (kinds.PUBLISHED, kinds.PROVISIONED):
            yield f"the event names a key twice: {', '.join(row.twice)}"
        yield from self._count(row)

    def finish(self) -> Iterator[str]:
        if self.kept_heads is None:
            return
        for stream, version, digest in self.kept_heads:
            have, tail = self._tails.get(stream) or _NONE
            if have < version:
                yield f"{stream} ends at event {have}, but the file says that it has {version}: the end was cut off"
            elif (have, tail) != (version, digest):
                yield f"{stream} ends at event {have}, which is not the end that the file keeps (event {version})"

    def _count(self, row: Row) -> Iterator[str]:
        if row.kind == kinds.ACTION_BEGUN:
            env, number = row.text("env"), row.number("number")
            before = self.heads.of(env).number
            if number != before + 1:
                yield f"action {number} of {env} follows action {before} of its lineage"
        elif row.kind == kinds.PUBLISHED:
            env, actions = row.text("env"), row.number("actions", 0)
            head = self.heads.of(env)
            if head.importing:
                return  # all of its actions were told before the first of its generations
            if row.text("op") in kinds.CONTINUING and actions != head.number:
                yield (
                    f"{env}@{row.number('generation')} says its lineage has {actions} actions, "
                    f"the events before it give {head.number}"
                )


def _link(previous: str, row: Row) -> str:
    return hashlib.sha256(f"{previous}\n{row.stream}\n{row.version}\n".encode() + row.raw).hexdigest()
