"""How a fault is planted, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

Plant = Callable[[], AbstractContextManager[None]]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One planted fault. ``rules``: of which one must be found broken; ``within``: how many seeds that may take."""

    name: str
    fault: str
    rules: frozenset[str]
    within: int
    plant: Plant


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, *rules: str, within: int) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Register a planted fault; its docstring tells what is wrong."""

    def register(plant: Callable[[], Iterator[None]]) -> None:
        fault = (plant.__doc__ or "").strip()
        MUTANTS[name] = Mutant(
            name=name, fault=fault, rules=frozenset(rules), within=within, plant=contextmanager(plant)
        )

    return register


@contextmanager
def changed(where: Any, name: str, value: Any) -> Iterator[Any]:
    """Replace an attribute while the body runs; gives the one before."""
    before = where.__dict__[name]
    setattr(where, name, value)
    try:
        yield before
    finally:
        setattr(where, name, before)
