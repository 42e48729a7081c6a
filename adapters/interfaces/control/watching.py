"""How far a thing is that takes long: whoever asked for it asks for that meanwhile, by a name of its own choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.python import Engine


class Told(NamedTuple):
    """What was told last. ``detail`` changes often, ``doing`` seldom."""

    fraction: float = 0.0
    doing: str = ""
    detail: str = ""


_told: dict[str, Told] = {}


Count = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


@contextmanager
def telling(task: str | None) -> Iterator[Callable[[float, str], None]]:
    """A callback for what is under way in the body: a fraction, and what is being done."""
    with _watched(task) as tell:
        yield lambda fraction, doing: tell(Told(fraction, doing))


@contextmanager
def counting(task: str | None) -> Iterator[Callable[[str, str], Count]]:
    """The same for what is counted: makes a callback of what is being done and of what is counted ("steps")."""
    with _watched(task) as tell:

        def counted(doing: str, what: str) -> Count:
            return lambda done, of: tell(Told(done / max(of, 1), doing, f"{done} of {of} {what}"))

        yield counted


@contextmanager
def _watched(task: str | None) -> Iterator[Callable[[Told], None]]:
    def tell(told: Told) -> None:
        if task is not None:
            _told[task] = told

    try:
        yield tell
    finally:
        if task is not None:
            _told.pop(task, None)


async def progress(engine: Engine, asked: ask.Watched) -> dict[str, Any]:
    """How far it is; nothing where there is no such task, none yet or none any more."""
    return _told.get(asked.task, Told())._asdict()
