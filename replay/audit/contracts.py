"""What a registered contract asks of each resource. Read here anew: the audit does not trust the engine's reader."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from statefork.replay.audit.rows import Row


class Wanted(NamedTuple):
    """What a contract says of one resource."""

    adapter: str
    durability: str
    depends_on: tuple[str, ...]
    private: bool = False  # a private backend may stand in for the adapter


class Contracts:
    """The contracts that were registered so far, by digest."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Wanted]] = {}

    def register(self, row: Row) -> str:
        """Take a contract in; why it can't be read, or nothing."""
        try:
            self._known[row.text("digest")] = _resources(row.text("text"))
        except (ValueError, AttributeError) as error:
            return f"the contract {row.text('name')} can't be read: {error}"
        return ""

    def of(self, digest: str) -> Mapping[str, Wanted] | None:
        """The resources of a contract; None when it was not registered."""
        return self._known.get(digest)

    def adapters(self) -> dict[str, str]:
        """Every resource that some contract names, with its adapter."""
        return {name: wanted.adapter for found in self._known.values() for name, wanted in found.items()}


@lru_cache(maxsize=64)  # every start of an engine registers its contract again
def _resources(text: str) -> Mapping[str, Wanted]:
    try:
        contract: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        contract = json.loads(text)
    return {
        name: Wanted(
            str(entry.get("adapter")),
            str(entry.get("durability", "authoritative")),
            tuple(entry.get("depends_on", ())),
            bool(entry.get("private")),
        )
        for name, entry in contract.get("resources", {}).items()
    }
