"""The order in which the resources of a contract depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Dependent(Protocol):
    """Something that names what it depends on."""

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The names."""
        ...


def find_cycle(specs: Mapping[str, Dependent]) -> tuple[str, ...]:
    """One circle of dependencies, its first name repeated at the end; empty where there is none."""
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> tuple[str, ...]:
        if name in trail:
            return (*trail[trail.index(name) :], name)
        if name in done or name not in specs:
            return ()
        trail.append(name)
        for needed in specs[name].depends_on:
            if circle := visit(needed):
                return circle
        done.add(trail.pop())
        return ()

    return next((circle for name in specs if (circle := visit(name))), ())


def dependencies_first(resources: Mapping[str, Dependent]) -> tuple[str, ...]:
    """Dependencies first; otherwise as in the file."""
    placed: dict[str, None] = {}

    def place(name: str) -> None:
        if name not in placed:
            for needed in resources[name].depends_on:
                place(needed)
            placed[name] = None

    for name in resources:
        place(name)
    return tuple(placed)
