"""Carrying out actions and looking. Runs on the asyncio thread."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import FilePayload, Locator, Page, Response

from statefork.adapters.resources.browser import actions as a
from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.settle import settle, twice
from statefork.adapters.resources.browser.sifting import screenshot_without, snapshot_without
from statefork.adapters.resources.browser.tab import LiveTab
from statefork.engine.errors import ActionFailed, InvalidAction
from statefork.journal.values import Json

SNAPSHOT_TIMEOUT_MS = 10_000
SCREENSHOT: dict[str, Any] = {"animations": "disabled", "caret": "hide", "scale": "css"}
LOOK_SECONDS_MAX = 20.0
REFUSED = "statefork-code"  # the header that only the gateway's own answers have
NEWS_SECONDS_MAX = 0.5
# A killed process fails what is under way in these words, and the news of its death may come a moment later.
_SEVERAL = "Several elements fit: say which with nth (0 is the first), or name the target more closely"
_NO_TUNNEL = "ERR_TUNNEL_CONNECTION_FAILED"  # so Chromium tells of every answer but 200 to a CONNECT
_SIGNS_OF_DEATH = ("ERR_ABORTED", "closed", "crashed")
DOWNLOAD_BYTES_MAX = 16 * 1024 * 1024


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen, as bytes; the resource stores them as blobs."""

    url: str
    title: str
    snapshot: bytes
    screenshot: bytes
    tabs: tuple[dict[str, Json], ...]  # url, title and active of each
    downloads: dict[str, bytes]  # finished since the last look, by suggested name
    value: dict[str, Json]
    rest: bytes = b""  # as snapshot, without what the contract's masks take out
    rest_screenshot: bytes = b""  # where pixels count


async def perform(live: LiveContext, action: a.AnyAction, settle_seconds_max: float) -> dict[str, Json]:
    """Carry out the action in the active tab and wait until it has come to rest. Returns what the action itself told.

    Raises ActionFailed; and PlaywrightError, where the browser or the page's process died.
    """
    since = live.sequence
    live.dialogs.clear()
    live.dialog_answer = (action.dialog, action.dialog_text) if isinstance(action, a.Click) else ("dismiss", "")
    tab = live.active
    try:
        told = await _carry_out(live, tab, action)
    except PlaywrightError as error:
        if any(sign in error.message for sign in _SIGNS_OF_DEATH):
            await asyncio.wait((live.death,), timeout=NEWS_SECONDS_MAX)
        if live.broken:
            raise
        if not tab.closed:  # a page that closed itself under the click did what it was told
            hint = _SEVERAL if "strict mode violation" in error.message else ""
            raise ActionFailed(_reason(error), hint=hint, action=str(action.to_json()["type"])) from error
        told = {}
    if not live.tabs:
        await live.new_tab()
    # A click may have opened a tab, whose load begins now: that is the one to wait for.
    await live.active.cdp()
    await settle(live, live.active, since, settle_seconds_max)
    if live.dialogs:
        told["dialogs"] = [msgspec.to_builtins(dialog) for dialog in live.dialogs]
    return told


def _reason(error: PlaywrightError) -> str:
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    # "Locator.click: Timeout 500ms exceeded." says nothing of the target; the call log's first line does.
    log = next((line.lstrip("- ") for line in lines if "waiting for" in line), "")
    if _NO_TUNNEL in lines[0]:
        log = "it is not a host of this environment's world, or not one for https"
    return f"{lines[0]} ({log})" if log and log not in lines[0] else lines[0]


async def _carry_out(live: LiveContext, tab: LiveTab, action: a.AnyAction) -> dict[str, Json]:
    page = tab.page
    match action:
        case a.Goto():
            return await _goto(live, page, action.url, action.wait_until, action.timeout_ms)
        case a.NewTab():
            opened = await live.new_tab()
            await opened.cdp()
            if action.url == "about:blank":
                return {}
            return await _goto(live, opened.page, action.url, "load", action.timeout_ms)
        case a.CloseTab():
            await _tab(live, action.tab).page.close()
        case a.SwitchTab():
            live.activate(_tab(live, action.tab))
            await live.active.page.bring_to_front()
        case a.Back():
            await _step(tab, -1)
            await page.go_back(timeout=action.timeout_ms)
        case a.Forward():
            await _step(tab, +1)
            await page.go_forward(timeout=action.timeout_ms)
        case a.Reload():
            await page.reload(timeout=action.timeout_ms)
        case a.Wait():
            await _wait(page, action)
        case _:
            await _on_target(page, action)
    return {}


async def _goto(live: LiveContext, page: Page, url: str, until: a.LoadState, timeout_ms: int) -> dict[str, Json]:
    downloads = len(live.downloads)
    try:
        answer = await page.goto(url, wait_until=until, timeout=timeout_ms)
    except PlaywrightError as error:
        if "Download is starting" in error.message or len(live.downloads) > downloads:
            return {}
        raise
    if answer is not None and answer.status == HTTPStatus.MISDIRECTED_REQUEST and (REFUSED in answer.headers):
        raise await _refused(answer, url)
    return {"status": answer.status} if answer is not None else {}


async def _refused(answer: Response, url: str) -> ActionFailed:
    """The error for an address at which the environment has nobody: the page shows what the gateway said instead."""
    try:
        why = str((await answer.json())["message"])
    except (PlaywrightError, ValueError, KeyError, TypeError):
        why = f"{urlsplit(url).netloc} is not a host of this environment's world"
    hint = "Go to a site of the contract; a host outside must be listed there (external)"
    return ActionFailed(why, hint=hint, action="goto", code=answer.headers[REFUSED])


async def _step(tab: LiveTab, by: int) -> None:
    # Playwright answers None both when there is no such entry and when the move stays within one document.
    entries, index = await tab.history()
    if not 0 <= index + by < len(entries):
        where = "back" if by < 0 else "forward"
        raise ActionFailed(f"there is nothing to go {where} to", action=where)


def _tab(live: LiveContext, number: int | None) -> LiveTab:
    if number is None:
        return live.active
    if not 0 <= number < len(live.tabs):
        raise InvalidAction(f"there is no tab {number}: {len(live.tabs)} are open", field="tab")
    return live.tabs[number]


def locate(page: Page, target: a.Targeted) -> Locator | None:
    """The locator of a target; None when it is named by coordinates or not at all."""
    root = page.frame_locator(target.frame) if target.frame else page
    found: Locator | None = None
    if target.selector:
        found = root.locator(target.selector)
    elif target.role:
        role: Any = target.role
        found = root.get_by_role(role, name=target.name or None, exact=target.exact)
    elif target.label:
        found = root.get_by_label(target.label, exact=target.exact)
    elif target.text:
        found = root.get_by_text(target.text, exact=target.exact)
    return found.nth(target.nth) if found is not None and target.nth is not None else found


async def _on_target(page: Page, action: a.Targeted) -> None:
    found, timeout = locate(page, action), action.timeout_ms
    if found is None:
        async with _deadline(timeout):
            await _at_point(page, action)
        return
    match action:
        case a.Click():
            await found.click(
                button=action.button, click_count=action.count, modifiers=list(action.modifiers), timeout=timeout
            )
        case a.Hover():
            await found.hover(timeout=timeout)
        case a.Fill() if action.keys:
            await found.press_sequentially(action.value, timeout=timeout)
        case a.Fill():
            await found.fill(action.value, timeout=timeout)
        case a.Press():
            await found.press(action.key, timeout=timeout)
        case a.Select() if action.labels:
            await found.select_option(label=list(action.labels), timeout=timeout)
        case a.Select():
            await found.select_option(value=list(action.values), timeout=timeout)
        case a.Check():
            await found.set_checked(action.checked, timeout=timeout)
        case a.Scroll():
            await found.hover(timeout=timeout)
            await page.mouse.wheel(action.dx, action.dy)
        case a.Upload():
            files = [
                FilePayload(name=f.name, mimeType=f.mime, buffer=base64.b64decode(f.content)) for f in action.files
            ]
            await found.set_input_files(files, timeout=timeout)
        case _:
            raise InvalidAction("the action has no target", field="type")


@contextlib.asynccontextmanager
async def _deadline(timeout_ms: int) -> Any:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError:
        raise PlaywrightError(f"Timeout {timeout_ms}ms exceeded.") from None


async def _at_point(page: Page, action: a.Targeted) -> None:
    """The same by coordinates; without them where the focus (keys) or the viewport's middle (wheel) is."""
    if action.x is not None and action.y is not None:
        await page.mouse.move(action.x, action.y)
    match action:
        case a.Hover():
            return
        case a.Scroll():
            if action.x is None:
                size = page.viewport_size or {"width": 0, "height": 0}
                await page.mouse.move(size["width"] / 2, size["height"] / 2)
            await page.mouse.wheel(action.dx, action.dy)
            return
        case a.Press():
            if action.x is not None and action.y is not None:
                await page.mouse.click(action.x, action.y)
            await page.keyboard.press(action.key)
            return
        case a.Click():
            assert action.x is not None
            assert action.y is not None
            for modifier in action.modifiers:
                await page.keyboard.down(modifier)
            await page.mouse.click(action.x, action.y, button=action.button, click_count=action.count)
            for modifier in action.modifiers:
                await page.keyboard.up(modifier)
            return
        case a.Fill():
            assert action.x is not None
            assert action.y is not None
            await page.mouse.click(action.x, action.y)
            if not action.keys:
                await page.keyboard.press("ControlOrMeta+a")
            await page.keyboard.type(action.value)
            return
        case a.Check():
            assert action.x is not None
            assert action.y is not None
            await page.mouse.click(action.x, action.y)
            return
        case _:
            raise InvalidAction("this action can't be aimed by coordinates", field="x")


async def _wait(page: Page, action: a.Wait) -> None:
    if action.url:
        await page.wait_for_url(action.url, timeout=action.timeout_ms, wait_until="commit")
        return
    found = locate(page, action)
    assert found is not None
    found = found if action.nth is not None else found.first
    await found.wait_for(state="hidden" if action.gone else "visible", timeout=action.timeout_ms)


async def look(live: LiveContext, *, screenshot: bool) -> Look:
    """See the active tab as it is now.

    Raises ActionFailed when it does not answer; PlaywrightError, where the browser or the page's process died.
    """
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            return await _look(live, screenshot)
    except TimeoutError:
        raise ActionFailed(f"the page does not answer within {LOOK_SECONDS_MAX:.0f} s", action="observe") from None


async def _look(live: LiveContext, screenshot: bool) -> Look:
    tab = live.active
    page = tab.page
    url, title, text, png, titles = await asyncio.gather(
        twice(lambda: page.evaluate("() => location.href")),
        twice(page.title),
        twice(lambda: page.locator(":root").aria_snapshot(timeout=SNAPSHOT_TIMEOUT_MS)),
        _shoot(page) if screenshot else asyncio.sleep(0, b""),
        asyncio.gather(*[_title(one) for one in live.tabs]),
    )
    tabs: list[dict[str, Json]] = [
        {"url": one.page.url, "title": name, "active": one is tab} for one, name in zip(live.tabs, titles, strict=True)
    ]
    rest, rest_png = await _rest(live, page, pixels=bool(png)) if live.selectors else ("", b"")
    return Look(
        url=url,
        title=title,
        snapshot=text.encode(),
        screenshot=png,
        tabs=tuple(tabs),
        downloads=await _finished(live),
        value={},
        rest=rest.encode(),
        rest_screenshot=rest_png,
    )


async def _rest(live: LiveContext, page: Page, *, pixels: bool) -> tuple[str, bytes]:
    """What is left without the elements that are taken out. After the whole, which must not lack them."""
    text = await twice(lambda: snapshot_without(page, live.selectors, SNAPSHOT_TIMEOUT_MS))
    if not pixels or live.conditions is None or not live.conditions.strict:
        return text, b""
    return text, await screenshot_without(page, live.selectors, SCREENSHOT)


async def _title(tab: LiveTab) -> str:
    try:
        async with asyncio.timeout(2.0):
            return await tab.page.title()
    except (PlaywrightError, TimeoutError):
        return ""


async def _shoot(page: Page) -> bytes:
    return await page.screenshot(**SCREENSHOT)


async def _finished(live: LiveContext) -> dict[str, bytes]:
    found = {}
    for download in [one for one in live.downloads if one not in live.unfinished and one not in live.shown]:
        live.shown.add(download)
        with contextlib.suppress(PlaywrightError):
            path = await download.path()
            if path.stat().st_size <= DOWNLOAD_BYTES_MAX:
                found[download.suggested_filename] = await asyncio.to_thread(path.read_bytes)
    return found
