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


@contextmanager
def telling(task: str | None) -> Iterator[Callable[[float, str], None]]:
    """A callback for what is under way in the body: a fraction, and what is being done."""

    def tell(fraction: float, doing: str) -> None:
        if task is not None:
            _told[task] = Told(fraction, doing)

    try:
        yield tell
    finally:
        if task is not None:
            _told.pop(task, None)


@contextmanager
def counting(task: str | None, doing: str) -> Iterator[Callable[[int, int], None]]:
    """The same for steps: how many are done, and of how many."""

    def count(done: int, of: int) -> None:
        if task is not None:
            _told[task] = Told(done / max(of, 1), doing, f"{done} of {of} steps")

    try:
        yield count
    finally:
        if task is not None:
            _told.pop(task, None)


async def progress(engine: Engine, asked: ask.Watched) -> dict[str, Any]:
    """How far it is; nothing where there is no such task, none yet or none any more."""
    return _told.get(asked.task, Told())._asdict()
