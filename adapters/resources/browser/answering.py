"""Answering a page's own request with what is known, and nothing else of it. Runs on the asyncio thread.

Through DevTools and for that one address: Playwright's routes take every request of a page to Python and back, and
switch its cache off.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urldefrag

from playwright.async_api import CDPSession
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.state import Document

_WILD = re.compile(r"[\\*?]")  # what a pattern of DevTools gives a meaning


@asynccontextmanager
async def answered_with(cdp: CDPSession, document: Document, url: str) -> AsyncIterator[None]:
    """The next request of a document at this address gets it; a later one (a frame's of the same address) goes on."""
    answers: list[asyncio.Task[None]] = []

    def paused(event: dict[str, Any]) -> None:
        answers.append(asyncio.ensure_future(_answer(cdp, event["requestId"], None if answers else document)))

    pattern = _WILD.sub(r"\\\g<0>", urldefrag(url).url)
    cdp.on("Fetch.requestPaused", paused)
    await cdp.send("Fetch.enable", {"patterns": [{"urlPattern": pattern, "resourceType": "Document"}]})
    try:
        yield
    finally:
        cdp.remove_listener("Fetch.requestPaused", paused)
        with suppress(PlaywrightError):
            await cdp.send("Fetch.disable")
        await asyncio.gather(*answers)


async def _answer(cdp: CDPSession, request: str, document: Document | None) -> None:
    with suppress(PlaywrightError):  # the page has gone
        if document is None:
            await cdp.send("Fetch.continueRequest", {"requestId": request})
            return
        headers = [{"name": name, "value": value} for name, value in document.headers.items()]
        answer = {"requestId": request, "responseCode": document.status, "responseHeaders": headers}
        await cdp.send("Fetch.fulfillRequest", {**answer, "body": document.body})
