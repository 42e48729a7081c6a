"""Waiting until a page has come to rest. Runs on the asyncio thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.context import LiveContext, LiveTab

FRAMES_SECONDS_MAX = 1.0
ROUNDS_MAX = 10

T = TypeVar("T")

_TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))"


async def settle(live: LiveContext, tab: LiveTab, since: int, seconds_max: float) -> bool:
    """Wait for load, for the end of the requests begun after ``since``, and for two animation frames after that.

    A page that is never at rest (polling, endless answers) ends the wait after ``seconds_max``; then False.
    """
    deadline = time.monotonic() + seconds_max
    for _ in range(ROUNDS_MAX):
        left = deadline - time.monotonic()
        if left <= 0 or tab.closed or tab.crashed:
            return False
        with contextlib.suppress(PlaywrightError):
            await tab.page.wait_for_load_state("load", timeout=left * 1000)
        if not await live.quiet(since, max(0.0, deadline - time.monotonic())):
            return False
        asked = live.sequence
        # A navigation that begins now destroys the evaluation: then it is waited for in the next round.
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(min(FRAMES_SECONDS_MAX, max(0.05, deadline - time.monotonic()))):
                await tab.page.evaluate(_TWO_FRAMES)
        if live.sequence == asked and not live.in_flight(since):
            return True
    return False


async def twice(read: Callable[[], Awaitable[T]]) -> T:
    """Read once more where a navigation destroyed the first reading."""
    try:
        return await read()
    except PlaywrightError as error:
        if "navigation" not in error.message and "context was destroyed" not in error.message:
            raise
        return await read()
