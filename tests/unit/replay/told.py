"""Journals as lists of events, which a test breaks in exactly one place; every hash is made right again afterwards.

told = Told(true_events())
ended = told.one("action.ended", "a", number=2)
ended["generation"] = 7
told.audit()
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from statefork.journal.codec import Codec
from statefork.journal.log import Recorded
from statefork.replay.audit.report import Report
from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import CHECKERS, Audit, Make

Event = dict[str, Any]


class Told:
    """Events in journal order, each with its stream. ``rows`` gives them places and hashes."""

    def __init__(self, events: list[tuple[str, Event]] | None = None) -> None:
        self.events: list[tuple[str, Event]] = events or []

    @classmethod
    def of(cls, recorded: list[Recorded]) -> Told:
        """What an engine journaled."""
        codec = Codec()
        return cls([(one.stream, json.loads(codec.encode(one.event))) for one in recorded])

    # --- finding ----------------------------------------------------------------------------------------------------

    def all(self, kind: str, env: str = "", **fields: Any) -> Iterator[Event]:
        """Every event of a kind (without its version), of one environment if that is named, with these fields."""
        for _, event in self.events:
            if event["type"].partition("/")[0] != kind or (env and event.get("env") != env):
                continue
            if all(event.get(name) == value for name, value in fields.items()):
                yield event

    def one(self, kind: str, env: str = "", nth: int = 0, **fields: Any) -> Event:
        """The first of them, unless ``nth`` says otherwise."""
        return list(self.all(kind, env, **fields))[nth]

    def find(self, kind: str, nth: int = -1, env: str = "") -> Event:
        """By its whole type; the last of its kind unless ``nth`` says otherwise."""
        return self.one(kind.partition("/")[0], env, nth)

    def position(self, event: Event) -> int:
        """Where an event stands."""
        return self._index(event) + 1

    def _index(self, event: Event) -> int:
        return next(index for index, (_, other) in enumerate(self.events) if other is event)

    # --- damaging ---------------------------------------------------------------------------------------------------

    def drop(self, *events: Event) -> None:
        """Leave events out, as if they had never been told."""
        self.events = [item for item in self.events if not any(item[1] is event for event in events)]

    def move(self, event: Event, before: Event | None = None, *, after: Event | None = None) -> Event:
        """Tell an event earlier, or later."""
        item = self.events.pop(self._index(event))
        at = self._index(before) if before is not None else self._index(after or {}) + 1
        self.events.insert(at, item)
        return event

    def insert(self, stream: str, kind: str, *, after: Event | None = None, **fields: Any) -> Event:
        """One more event, at the end unless ``after`` says otherwise."""
        event = {"type": f"{kind}/1", "at": 1.0, **copy.deepcopy(fields)}
        self.events.insert(len(self.events) if after is None else self._index(after) + 1, (stream, event))
        return event

    def again(self, event: Event, *, after: Event | None = None, stream: str = "", **changed: Any) -> Event:
        """Tell an event a second time, with some fields changed."""
        told = {**copy.deepcopy(event), **changed}
        at = self._index(after or event)
        self.events.insert(at + 1, (stream or self.events[self._index(event)][0], told))
        return told

    # --- telling ----------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The journal, every hash right."""
        rows = []
        tails: dict[str, tuple[int, str]] = {}
        for position, (stream, event) in enumerate(self.events, 1):
            version, previous = tails.get(stream, (0, "0" * 64))
            raw = json.dumps(event, separators=(",", ":")).encode()
            version += 1
            digest = hashlib.sha256(f"{previous}\n{stream}\n{version}\n".encode() + raw).hexdigest()
            tails[stream] = (version, digest)
            rows.append(Row(position=position, stream=stream, version=version, digest=digest, raw=raw))
        return rows

    def recorded(self) -> list[Recorded]:
        """The journal as its readers see it."""
        codec = Codec()
        return [
            Recorded(
                position=row.position,
                stream=row.stream,
                version=row.version,
                event=codec.decode(row.raw, position=row.position),
                hash=row.digest,
            )
            for row in self.rows()
        ]

    def audit(self, checkers: tuple[Make, ...] = CHECKERS) -> Report:
        """What the audit says."""
        return Audit(checkers=checkers).run(self.rows())
