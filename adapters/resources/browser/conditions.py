"""Chance and time in the pages of one context. Runs on the asyncio thread.

A script that runs before a page's own draws its random numbers from the seed that it was given, and shifts its clock
where that is given. Documents that are loaded later get it from Playwright, which also reaches popups and frames; those
that are there already are told. In strict determinism Playwright's clock stands, and goes on by steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from playwright.async_api import BrowserContext, Page
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.scripts import plain
from statefork.journal.values import Conditions

TELL_SECONDS_MAX = 1.0  # a page that is busy for longer goes on with what it has
STEP_MS = 100
STEPS = 5


class PageConditions:
    """What the documents of a context are told. ``strict``: clocks stand, and nothing moves by itself."""

    def __init__(self, context: BrowserContext, *, strict: bool) -> None:
        self._context = context
        self.strict = strict
        self.present: Conditions | None = None  # of documents that are loaded now; a real clock's beginning is in it
        self._script: Any = None
        self._stands = False

    async def for_documents(self, conditions: Conditions) -> None:
        """What documents are loaded under from here on."""
        self.present = msgspec.structs.replace(conditions, now=conditions.now or time.time())
        if self.strict:
            await self._stand_at(self.present.now)
        before, self._script = self._script, None
        adding = self._context.add_init_script(self._call(conditions, "load"))
        # The new one is sent first: no document is loaded without any.
        self._script, _ = await asyncio.gather(adding, before.close() if before is not None else asyncio.sleep(0))

    async def for_blank(self, conditions: Conditions, page: Page) -> None:
        """The same as if a blank page had been opened after they were given."""
        await _tell(page.main_frame, self._call(conditions, "load"))

    async def for_all(self, conditions: Conditions, pages: Iterable[Page]) -> None:
        """What holds from here on, in documents that are there as well."""
        if self.strict:
            await self.for_documents(conditions)  # Playwright's clock is told first
        call = self._call(conditions, "go on")
        told = [asyncio.ensure_future(_tell(frame, call)) for page in pages for frame in page.frames]
        if not self.strict:
            await self.for_documents(conditions)
        if told:
            _, late = await asyncio.wait(told, timeout=TELL_SECONDS_MAX)
            for task in late:
                task.cancel()

    @asynccontextmanager
    async def of(self, page: Page, conditions: Conditions | None) -> AsyncIterator[None]:
        """What the documents of one page are loaded under in the body: those of a page that is restored are its own."""
        if conditions is None:
            yield
            return
        if self.strict:
            await self._stand_at(conditions.now)
        script: Any = await page.add_init_script(self._call(conditions, "load"))
        try:
            yield
        finally:
            with contextlib.suppress(PlaywrightError):
                await script.close()

    async def step(self) -> None:
        """Let the standing clock go on for a moment."""
        await self._context.clock.run_for(STEP_MS)

    async def _stand_at(self, now: float) -> None:
        clock = self._context.clock
        if not self._stands:
            self._stands = True
            await clock.install(time=now)
            await clock.pause_at(now + 0.001)  # at the very moment of its installation it can't stand
        await clock.set_system_time(now)

    def _call(self, conditions: Conditions, how: str) -> str:
        offset_ms = round((conditions.now - time.time()) * 1000) if conditions.now and not self.strict else 0
        given = {"seed": conditions.seed, "offset": offset_ms, "strict": self.strict}
        return f"({plain('conditions')})({json.dumps(given)}, {json.dumps(how)})"


async def _tell(frame: Any, call: str) -> None:
    with contextlib.suppress(PlaywrightError):  # it has gone, or is a page on which nothing runs
        await frame.evaluate(call)
