"""What the Python face hands out: an observation with its blobs within reach, and the cost of a whole engine."""

from __future__ import annotations

from typing import Any

import msgspec

from statefork.engine.ports import Blobs
from statefork.journal.values import Json, Observation


class Seen:
    """What an agent saw after an action (or by looking). The bytes are read from the blob store when asked for."""

    def __init__(self, observation: Observation, blobs: Blobs, *, number: int = 0) -> None:
        self.observation = observation
        self.number = number
        self._blobs = blobs

    @property
    def url(self) -> str:
        """Address of the active page."""
        return self.observation.url

    @property
    def title(self) -> str:
        """Title of the active page."""
        return self.observation.title

    @property
    def digest(self) -> str:
        """SHA-256 over what a replay must reproduce: address, title and accessibility snapshot of every tab."""
        return self.observation.digest

    @property
    def value(self) -> Json:
        """A value that the action itself returned, if it returns one."""
        return self.observation.value

    @property
    def text(self) -> str:
        """The accessibility snapshot: what a screen reader would be told, as indented text."""
        return self._blobs.get(self.observation.snapshot).decode() if self.observation.snapshot else ""

    @property
    def png(self) -> bytes:
        """The screenshot; empty when the actor has no screen."""
        return self._blobs.get(self.observation.screenshot) if self.observation.screenshot else b""

    def part(self, name: str) -> bytes:
        """A further named part of the observation. Raises KeyError."""
        return self._blobs.get(self.observation.parts[name])

    def __repr__(self) -> str:
        return f"<Seen {self.url!r} {self.title!r} {self.digest[:12]}>"


class ProcessCost(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one resident runtime: the sum of PSS over its process tree (Linux ``smaps_rollup``), in bytes."""

    resource: str
    processes: int
    pss_bytes: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine costs: its shared runtimes, and per environment the private bytes on disk by resource."""

    runtimes: tuple[ProcessCost, ...]
    engine_pss_bytes: int
    private_bytes: dict[str, dict[str, int]]


def to_json(value: Any) -> Any:
    """Plain JSON types of any value in this package."""
    return msgspec.to_builtins(value)
