"""Stopping the pages' scripts for the length of a cut. Runs on the asyncio thread.

The debugger, which every tab has from its beginning, pauses each page at its next statement: timers, animation frames,
promises and message handlers of the page and of its same-process frames stand still, and go on afterwards as if nothing
had been. Not stopped: web workers, service workers, frames in other processes, media and CSS animations. Their requests
are held or refused by the gateway. Between cuts it skips whatever would pause a page.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from playwright.async_api import CDPSession
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.debugger import enable
from statefork.adapters.resources.browser.tab import LiveTab

PAUSE_SECONDS_MAX = 1.0


def _note(paused: asyncio.Future[None], _: Any) -> None:
    if not paused.done():
        paused.set_result(None)


class Paused:
    """The tabs of one context that stand still."""

    def __init__(self, live: LiveContext) -> None:
        self._live = live
        self._sessions: list[CDPSession] = []  # each may have paused its page, also where nobody waited for it
        self._nudges: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        """Pause every tab that can be paused."""
        await asyncio.gather(*[self._pause(tab) for tab in self._live.tabs if not tab.crashed])

    async def _pause(self, tab: LiveTab) -> None:
        # A page that is busy for ever does not even hear of the debugger: then it is left as it is.
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS_MAX):
                session = await tab.cdp()
                self._sessions.append(session)
                paused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                session.once("Debugger.paused", partial(_note, paused))
                # Sent at once, answered in order. Waiting for each answer would only take longer.
                asked = asyncio.gather(
                    session.send("Debugger.setSkipAllPauses", {"skip": False}), session.send("Debugger.pause")
                )
                # A page with nothing to do would only pause at its next event: this statement is one.
                nudge = asyncio.create_task(session.send("Runtime.evaluate", {"expression": "0"}))
                nudge.add_done_callback(_read)  # it ends with an error when the context is closed as it stands
                self._nudges.append(nudge)
                await asked
                await paused

    async def end(self) -> None:
        """Let every tab go on. Idempotent."""
        sessions, self._sessions = self._sessions, []
        nudges, self._nudges = self._nudges, []
        await asyncio.gather(*[_go_on(session) for session in sessions])
        for nudge in nudges:
            nudge.cancel()
        if nudges:
            await asyncio.wait(nudges)


async def _go_on(session: CDPSession) -> None:
    with contextlib.suppress(PlaywrightError, TimeoutError):
        async with asyncio.timeout(PAUSE_SECONDS_MAX):
            try:
                skip = session.send("Debugger.setSkipAllPauses", {"skip": True})
                await asyncio.gather(skip, session.send("Debugger.resume"))
            except PlaywrightError:  # it is still too busy to have paused, and must not do so later
                await session.send("Debugger.disable")
                await enable(session)


def _read(nudge: asyncio.Task[Any]) -> None:
    if not nudge.cancelled():
        nudge.exception()
