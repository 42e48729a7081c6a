"""The debugger of a tab, by which a cut stops its scripts. Runs on the asyncio thread."""

from __future__ import annotations

from playwright.async_api import CDPSession


async def enable(session: CDPSession) -> None:
    """Give a tab the debugger before it has loaded anything, and let it pause nothing yet.

    On a document with scripts it takes 100 ms and more, which no cut should wait for.
    """
    await session.send("Debugger.enable")
    await session.send("Debugger.setSkipAllPauses", {"skip": True})
