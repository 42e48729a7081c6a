"""Raw rows of a journal, decoded here and nowhere else: the audit shares no code with what it audits.

A row is taken apart only as far as a checker asks. Whatever is missing or of the wrong type makes the row unreadable;
it never counts as keeping a rule. What can be judged without reading it (its place, its hash) is judged all the same.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from statefork.replay.audit.report import Unreadable

NUMBER_MAX = 1 << 60  # what a checker remembers has to fit where it is kept


class _Decoder(threading.local):
    """JSON that tells of keys that an object names twice. Made once for each thread: making one takes long."""

    def __init__(self) -> None:
        self._twice: list[str] = []
        self._decode = json.JSONDecoder(object_pairs_hook=self._pairs).decode

    def decode(self, raw: bytes, twice: list[str]) -> Any:
        """The value. ``twice`` is given the keys."""
        self._twice = twice
        return self._decode(raw.decode())

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            self._twice += sorted({name for name in names if names.count(name) > 1})
        return made


_DECODER = _Decoder()


class Row:
    """One stored event: its place, its bytes as stored, and its fields."""

    __slots__ = ("broken", "data", "digest", "kind", "position", "raw", "stream", "twice", "version")

    def __init__(self, *, position: int, stream: str, version: int, digest: str, raw: bytes) -> None:
        self.position = position
        self.stream = stream
        self.version = version
        self.digest = digest
        self.raw = raw
        self.twice: list[str] = []  # keys that some object of the event names more than once
        self.broken = ""  # why the event can't be read; empty when it can
        self.data: dict[str, Any] = {}
        self.kind = ""
        try:
            data = _DECODER.decode(raw, self.twice)
        except (ValueError, RecursionError) as error:
            self.broken = f"the event is not JSON: {error}"
            return
        if isinstance(data, dict) and isinstance(data.get("type"), str):
            self.data, self.kind = data, data["type"]
        else:
            self.broken = "the event is not an object with a type"

    def _unusable(self, name: str) -> Unreadable:
        return Unreadable(f"{self.kind} has no usable field {name!r}", position=self.position)

    @property
    def place(self) -> str:
        """Whose engine's stream it stands in, where several share the journal; else empty."""
        name, _, place = self.stream.partition("/")
        return place if name == "engine" else ""

    def text(self, name: str, default: str | None = None) -> str:
        """A text field."""
        value = self.data.get(name, default)
        if type(value) is str:
            return value
        raise self._unusable(name)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole-number field; true and false are no numbers, and no count is as long as 64 bits."""
        value = self.data.get(name, default)
        if type(value) is int and abs(value) < NUMBER_MAX:
            return value
        raise self._unusable(name)

    def table(self, name: str) -> Mapping[str, Any]:
        """An object field."""
        value: Any = self.data.get(name, {})
        if type(value) is dict:
            return value
        raise self._unusable(name)

    def items(self, name: str) -> list[Any]:
        """A list field."""
        value: Any = self.data.get(name, [])
        if type(value) is list:
            return value
        raise self._unusable(name)

    def sealed(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The sealed versions that a manifest names, with their resources. What is none is a finding of I4."""
        for name, component in self.table("manifest").items():
            sealed = component.get("sealed") if isinstance(component, dict) else None
            if isinstance(sealed, dict) and isinstance(sealed.get("version"), str):
                yield name, sealed

    def moment(self, name: str) -> tuple[str, int] | None:
        """A field that names one generation of one environment, or null."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("env"), str):
            raise Unreadable(f"{self.kind} has no usable moment {name!r}", position=self.position)
        generation = value.get("generation")
        if not isinstance(generation, int) or abs(generation) >= NUMBER_MAX:
            raise Unreadable(f"{self.kind} has no usable moment {name!r}", position=self.position)
        return value["env"], generation
