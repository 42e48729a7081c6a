"""A replay that halts after each step, led through a door that answers each request once.

The request ``replay`` stays open until the end. Meanwhile ``step`` asks for one step after the other, by the name that
the asker gave it, and says whether to go on. A client that thinks for long says now and then that it is still there;
one that is gone says nothing, and its replay is dropped: nothing of it is left, whatever it had asked to keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import anyio
import msgspec

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.python import Engine
from statefork.replay.steps import OnStep, StepResult, nobody_asks

SILENCE_S = 30.0
"""How long a client may say nothing while its replay halts."""
WAIT_S = 2.0
"""How long a request for the next step waits for it, before it is answered without."""


class Walk:
    """One such replay."""

    def __init__(self) -> None:
        self._last: StepResult | None = None
        self._done = 0
        self._on = False  # to the next step
        self._over: Literal["", "stop", "drop"] = ""
        self._heard = anyio.current_time()
        self._moved = anyio.Event()
        self._ended = False

    async def halt(self, step: StepResult) -> bool:
        """After a step: whether to go on, once that is known. Raises ReplayDropped."""
        self._last = step
        self._done += 1
        self._heard = anyio.current_time()
        self._on = False
        self._move()
        while not (self._on or self._over):
            left = self._heard + SILENCE_S - anyio.current_time()
            if left <= 0:
                raise ask.ReplayDropped(
                    f"nobody asked for the next step within {SILENCE_S:g} s", hint="The replay has ended: begin again"
                )
            moved = self._moved
            with anyio.move_on_after(left):
                await moved.wait()
        if self._over == "drop":
            raise ask.ReplayDropped("the replay was dropped by who led it")
        return not self._over

    async def hear(self, asked: ask.Step) -> StepResult | None:
        """Take in what was asked; the step after those that the asker has seen, or None while there is none."""
        self._heard = anyio.current_time()
        if asked.then in ("stop", "drop"):
            self._over = asked.then
        elif asked.then == "on" and asked.after == self._done:
            self._on = True
        self._move()
        if asked.then == "on":
            with anyio.move_on_after(WAIT_S):
                while self._done <= asked.after and not self._ended:
                    await self._moved.wait()
        return self._last if self._done > asked.after else None

    def end(self) -> None:
        """There will be no further step."""
        self._ended = True
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()


_walks: dict[str, Walk] = {}  # by a name that the asker chose


@contextmanager
def stepped(asked: ask.Replay) -> Iterator[OnStep]:
    """What to call after each step of a replay: it halts there if that was asked for."""
    if not asked.steps or asked.task is None:
        yield nobody_asks
        return
    walk = _walks[asked.task] = Walk()
    try:
        yield walk.halt
    finally:
        walk.end()
        del _walks[asked.task]


async def step(engine: Engine, asked: ask.Step) -> dict[str, Any]:
    """The next step of a replay; none where there is no such replay, none yet or none any more."""
    walk = _walks.get(asked.task)
    found = await walk.hear(asked) if walk is not None else None
    return {"step": msgspec.to_builtins(found) if found is not None else None}
