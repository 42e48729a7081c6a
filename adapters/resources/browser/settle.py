"""Waiting until a page has come to rest. Runs on the asyncio thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.conditions import STEPS
from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.tab import LiveTab

FRAMES_SECONDS_MAX = 1.0
ROUNDS_MAX = 10

T = TypeVar("T")

_ONE_PIXEL = {"format": "jpeg", "quality": 1, "clip": {"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1}}

_TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))"


async def settle(live: LiveContext, tab: LiveTab, since: int, seconds_max: float) -> bool:
    """Wait for load, for the end of the requests begun after ``since``, and for two animation frames after that.

    A page that is never at rest (polling, endless answers) ends the wait after ``seconds_max``; then False. Where the
    page's clock stands, it goes on by a number of steps that is always the same, none while an answer is awaited.
    """
    if live.conditions is not None and live.conditions.strict:
        return await _step(live, tab, since, seconds_max)
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


async def _step(live: LiveContext, tab: LiveTab, since: int, seconds_max: float) -> bool:
    """The wait in strict determinism: each step of the clock comes after all answers, and after a real frame."""
    assert live.conditions is not None
    deadline = time.monotonic() + seconds_max
    quiet = True
    for _ in range(STEPS):
        left = max(0.05, deadline - time.monotonic())
        with contextlib.suppress(PlaywrightError):
            await tab.page.wait_for_load_state("load", timeout=left * 1000)
        quiet = await live.quiet(since, left)
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(FRAMES_SECONDS_MAX):
                cdp = await tab.cdp()
                await cdp.send("Page.captureScreenshot", _ONE_PIXEL)  # makes the page draw
                await live.conditions.step()
    return quiet and not live.in_flight(since)


async def twice(read: Callable[[], Awaitable[T]]) -> T:
    """Read once more where a navigation destroyed the first reading."""
    try:
        return await read()
    except PlaywrightError as error:
        if "navigation" not in error.message and "context was destroyed" not in error.message:
            raise
        return await read()
