"""Time and chance: one seed gives one run.

Everything runs in one thread on trio. Its clock stands still while somebody can run, and jumps to the next deadline
when nobody can; its scheduler shuffles what is ready to run, with a generator that is seeded here. The garbage
collector is off meanwhile: it would finalise asynchronous generators whenever it liked.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run

R = TypeVar("R")
BEGAN = 1_700_000_000.0
"""What the engine's clock says when a run begins, in Unix seconds: any fixed number."""


class SimulatedClock:
    """The engine's clock on trio's."""

    def now(self) -> float:
        """Unix seconds."""
        return BEGAN + trio.current_time()

    def monotonic(self) -> float:
        """Seconds since the run began."""
        return trio.current_time()


def run_seeded(seed: int, main: Callable[[], Awaitable[R]]) -> R:
    """Run ``main`` under trio so that the same seed gives the same run, in any process."""
    scheduler: Any = _run  # trio has this switch for property-based tests, without a public name
    chance: random.Random = scheduler._r
    kept = (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, chance.getstate())
    collecting = gc.isenabled()
    gc.disable()
    try:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
        chance.seed(seed)
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = kept[0]
        chance.setstate(kept[1])
        if collecting:
            gc.enable()
