"""What is left of a page without the elements that the contract's masks take out. Runs on the asyncio thread.

The elements are hidden from the accessibility tree for one more snapshot, and covered in one more screenshot where
pixels count. The first is done in the world of Playwright's own scripts, so that nothing of the document changes and
the page can't notice; the second as Playwright does it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from playwright.async_api import Browser, Page, Playwright
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.scripts import plain
from statefork.engine.errors import ContractError
from statefork.engine.masks import Selector
from statefork.engine.places import Problem

ENGINE = "statefork-rest"
COVER = "#808080"


async def prepare(playwright: Playwright) -> None:
    """Make the engine known. Once for each driver, before its first page."""
    script = plain("rest")
    await playwright.selectors.register(ENGINE, f"({script[script.index('{') :]})", content_script=True)


async def check(browser: Browser, selectors: Sequence[Selector]) -> None:
    """Raise ContractError for what the browser can't read as a selector, each with its place."""
    page = await browser.new_page()
    try:
        problems = []
        for selector in selectors:
            try:
                await page.evaluate("(text) => { document.querySelector(text) }", selector.text)
            except PlaywrightError:
                problems.append(Problem(place=selector.place, message=f"{selector.text!r} is no CSS selector"))
    finally:
        await page.close()
    if problems:
        raise ContractError.of(problems)


async def snapshot_without(page: Page, selectors: Sequence[str], timeout_ms: float) -> str:
    """The accessibility snapshot of what no selector matches, nor is within what one matches."""
    try:
        return await page.locator(_engine(selectors)).aria_snapshot(timeout=timeout_ms)
    finally:
        await page.locator(_engine(())).count()


def _engine(selectors: Sequence[str]) -> str:
    return f"{ENGINE}={json.dumps(list(selectors)).encode().hex()}"


async def screenshot_without(page: Page, selectors: Sequence[str], options: Mapping[str, Any]) -> bytes:
    """A screenshot on which the boxes of what the selectors match are covered: only place and size are to be seen."""
    covered = [page.locator(f"css={selector}") for selector in selectors]
    return await page.screenshot(**options, mask=covered, mask_color=COVER)
