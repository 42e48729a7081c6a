"""What was chosen for an environment, as JSON and in words; without an engine nobody knows what its contract says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statefork.engine.capsule import Capsule, Chosen


def policies(capsule: Capsule) -> dict[str, Any]:
    """As JSON: ``policy`` None: as the contract says; ``since`` (Unix seconds, UTC) None: from generation 1 on."""
    return {name: {"policy": one.text or None, "since": one.at or None} for name, one in _both(capsule)}


def chosen_texts(capsule: Capsule) -> Iterator[tuple[str, str, float]]:
    """What somebody chose: its name, the policy, since when (Unix seconds)."""
    for name, one in _both(capsule):
        if one.text:
            yield name, one.text, one.at


def _both(capsule: Capsule) -> tuple[tuple[str, Chosen], ...]:
    return ("snapshots", capsule.snapshots), ("retention", capsule.retention)
