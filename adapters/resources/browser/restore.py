"""Making a context what a :class:`Profile` says. Runs on the asyncio thread.

History and storage are laid out on empty stub pages, without a request; then each tab goes to its entry, the stubs are
taken away and the page is loaded once, so the server sees one GET per tab. What the load's scripts and answers changed
(cookies, storage) is put back afterwards, and the views are applied.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import FilePayload, Page, Response, Route
from playwright.async_api import Frame as PageFrame

from statefork.adapters.resources.browser.capture import answer_with_stub, open_stub, read_origin
from statefork.adapters.resources.browser.context import LiveContext, LiveTab, origin_of
from statefork.adapters.resources.browser.scripts import script
from statefork.adapters.resources.browser.settle import settle
from statefork.adapters.resources.browser.state import Document, Entry, Frame, Origin, Profile, Tab
from statefork.engine.errors import ResourceFailed

LOAD_TIMEOUT_MS = 30_000
SETTLE_SECONDS_MAX = 5.0
_BLANK = "about:blank"


async def restore(live: LiveContext, profile: Profile) -> list[str]:
    """Fill an empty context. Returns what could not be put back, each as a short sentence.

    Raises PlaywrightError when a page does not load.
    """
    if profile.start:
        tab = await live.new_tab()
        if profile.start != _BLANK:
            answer = await tab.page.goto(profile.start, timeout=LOAD_TIMEOUT_MS)
            _accept(0, answer)
            await settle(live, tab, 0, SETTLE_SECONDS_MAX)
        return []
    problems: list[str] = []
    await live.context.add_cookies(_settable(profile))
    await live.context.route("**/*", answer_with_stub)
    tabs = await _open_tabs(live, profile)
    waiting = dict(profile.origins)
    pairs = list(zip(tabs, profile.tabs, strict=True))
    await asyncio.gather(*[_lay_out(live, tab, one, waiting, problems) for tab, one in pairs])
    await _fill_origins(live, waiting, problems)
    await live.context.unroute("**/*", answer_with_stub)
    await _register_workers(live, tabs, profile, problems)
    before = live.sequence
    live.dirty.clear()
    await asyncio.gather(*[_load(tab, one) for tab, one in pairs])
    for tab in tabs:
        await settle(live, tab, before, SETTLE_SECONDS_MAX)
    for number, (tab, one) in enumerate(pairs):
        problems += [f"tab {number}: {what}" for what in await _apply(tab, one)]
    await _put_back(live, tabs, profile, problems)
    await live.noted()
    for tab, one in pairs:
        await _remember(tab, one)
    for origin in profile.origins.keys() | live.known.keys():
        live.known[origin] = profile.origins.get(origin, Origin())
    if tabs:
        live.activate(tabs[profile.active])
    return problems


def _settable(profile: Profile) -> list[Any]:
    # What was read is what can be set, except that an absent partition must stay absent.
    return [{key: value for key, value in cookie.items() if value is not None} for cookie in profile.cookies]


async def _open_tabs(live: LiveContext, profile: Profile) -> list[LiveTab]:
    tabs: list[LiveTab] = []
    for tab in profile.tabs:  # one after the other, so that they have the same order for everybody
        if tab.opener is None or tab.opener >= len(tabs):
            tabs.append(await live.new_tab())
            continue
        opener = tabs[tab.opener].page
        name = tab.frames[0].view["name"] if tab.frames else ""
        async with opener.expect_popup() as popup:
            await opener.evaluate("name => { window.open('about:blank', name || '_blank') }", name)
        page = await popup.value
        tabs.append(next(one for one in live.tabs if one.page is page))
    for one in tabs:
        await one.cdp()
    return tabs


async def _lay_out(
    live: LiveContext, tab: LiveTab, wanted: Tab, waiting: dict[str, Origin], problems: list[str]
) -> None:
    """History, storage of the origins on the way, window.name; ends on the present entry, all of it stubs."""
    page = tab.page
    visited = {origin_of(entry.url) for entry in wanted.entries}
    strangers = [origin for origin in wanted.session if origin not in visited]
    for stranger in strangers:
        await page.goto(stranger + "/")
        await _fill(page, stranger, wanted, waiting, problems)
    first = wanted.entries[0].url
    fresh = not strangers and first == _BLANK
    for index, entry in enumerate(wanted.entries):
        if index == 0 and fresh:
            continue
        await _add_entry(page, entry, wanted.referrer if index == wanted.current else "")
        if index == 0:
            await (await tab.cdp()).send("Page.resetNavigationHistory")
        origin = origin_of(entry.url)
        if origin is not None:
            await _fill(page, origin, wanted, waiting, problems)
    if wanted.frames and wanted.frames[0].view["name"]:
        await page.evaluate("name => { window.name = name }", wanted.frames[0].view["name"])
    entries, _ = await tab.history()
    if len(entries) != len(wanted.entries):
        problems.append(f"the history of {page.url} has {len(entries)} entries, not {len(wanted.entries)}")
        return
    if wanted.current != len(entries) - 1:
        async with page.expect_event("framenavigated"):
            await (await tab.cdp()).send("Page.navigateToHistoryEntry", {"entryId": entries[wanted.current]["id"]})


async def _add_entry(page: Page, entry: Entry, referrer: str) -> None:
    if entry.same_document or (entry.url == page.url and entry.url != _BLANK):
        # Going to the address that is shown would reload it and add no entry, so that also becomes a pushState.
        await page.evaluate(script("push"), {"state": entry.state, "url": entry.url, "replace": False})
        return
    url = entry.url if origin_of(entry.url) is not None else _BLANK
    await page.goto(url, referer=referrer if referrer and url != _BLANK else None)
    if entry.state is not None:
        await page.evaluate(script("push"), {"state": entry.state, "url": entry.url, "replace": True})


async def _fill(page: Page, origin: str, tab: Tab | None, waiting: dict[str, Origin], problems: list[str]) -> None:
    kept = waiting.pop(origin, None)
    session = tab.session.get(origin) if tab is not None else None
    if kept is None and not session:
        return
    wanted = {
        "session": session,
        "local": kept.local if kept else None,
        "databases": kept.databases if kept else None,
        "caches": kept.caches if kept else None,
    }
    problems += [f"{origin}: {what}" for what in await page.evaluate(script("storage"), wanted)]


async def _fill_origins(live: LiveContext, waiting: dict[str, Origin], problems: list[str]) -> None:
    if not waiting:
        return
    page = await open_stub(live)
    try:
        for origin in list(waiting):
            await page.goto(origin + "/")
            await _fill(page, origin, None, waiting, problems)
    finally:
        await page.close()
        live.hidden.discard(page)


async def _register_workers(live: LiveContext, tabs: list[LiveTab], profile: Profile, problems: list[str]) -> None:
    shown = {origin_of(tab.page.url): tab.page for tab in tabs}
    for origin, kept in profile.origins.items():
        if not kept.workers:
            continue
        hidden = None if origin in shown else await live.hidden_page()
        page = hidden or shown[origin]
        if hidden is not None:
            await hidden.route(lambda url: True, _document_only)
            await hidden.goto(origin + "/")
        try:
            for worker in kept.workers:
                await page.evaluate(script("worker"), worker)
        except PlaywrightError as error:
            problems.append(f"{origin}: service worker: {error.message.splitlines()[0]}")
        finally:
            if hidden is not None:
                await hidden.close()
                live.hidden.discard(hidden)


async def _document_only(route: Route) -> None:
    if route.request.is_navigation_request():
        await answer_with_stub(route)
    else:
        await route.continue_()


async def _load(tab: LiveTab, wanted: Tab) -> None:
    """The one real load of a tab."""
    page = tab.page
    if origin_of(page.url) is None:
        return
    if wanted.status < 0:
        with contextlib.suppress(PlaywrightError):  # it was an error page then, and may be one again
            await page.reload(timeout=LOAD_TIMEOUT_MS)
        return
    if wanted.document is None:
        _accept(wanted.status, await page.reload(timeout=LOAD_TIMEOUT_MS))
        return
    answer = _answer_with(wanted.document, page)
    await page.route("**/*", answer)
    try:
        await page.reload(timeout=LOAD_TIMEOUT_MS)
    finally:
        await page.unroute("**/*", answer)


def _accept(status: int, answer: Response | None) -> None:
    """A server's failure where there was none is no restored page: better no successor than a broken one."""
    if answer is not None and answer.status >= 500 and answer.status != status:
        raise ResourceFailed(f"{answer.url} answered {answer.status}", url=answer.url, status=answer.status)


def _answer_with(document: Document, page: Page) -> Callable[[Route], Awaitable[None]]:
    async def answer(route: Route) -> None:
        if route.request.is_navigation_request() and route.request.frame == page.main_frame:
            body = base64.b64decode(document.body)
            await route.fulfill(status=document.status, headers=document.headers, body=body)
        else:
            await route.continue_()

    return answer


async def _apply(tab: LiveTab, wanted: Tab) -> list[str]:
    problems: list[str] = []
    for frame in wanted.frames:
        found = _frame_at(tab.page.main_frame, frame.at)
        if found is None:
            problems.append(f"frame {frame.at} is not there")
            continue
        if frame.at and found.url != frame.view["url"] and origin_of(frame.view["url"]) is not None:
            await found.goto(frame.view["url"], timeout=LOAD_TIMEOUT_MS)
        problems += await _apply_frame(found, frame)
    return problems


async def _apply_frame(found: PageFrame, frame: Frame) -> list[str]:
    for field in frame.view["fields"]:
        if "files" in field:
            # [tag, name, type, time, base64]: see scripts/codec.js
            files = [FilePayload(name=f[1], mimeType=f[2], buffer=base64.b64decode(f[4])) for f in field["files"]]
            await found.locator(field["path"][-1]).set_input_files(files, timeout=LOAD_TIMEOUT_MS)
    missing = [f"{what} is not there" for what in await found.evaluate(script("apply"), frame.view)]
    if frame.session is not None or frame.local is not None:
        await found.evaluate(script("storage"), {"session": frame.session, "local": frame.local})
    return missing


def _frame_at(frame: PageFrame, at: tuple[int, ...]) -> PageFrame | None:
    for index in at:
        children = frame.child_frames
        if index >= len(children):
            return None
        frame = children[index]
    return frame


async def _put_back(live: LiveContext, tabs: list[LiveTab], profile: Profile, problems: list[str]) -> None:
    """Undo what the load's scripts and answers changed."""
    done = set()
    for tab, one in zip(tabs, profile.tabs, strict=True):
        origin = origin_of(tab.page.url)
        if origin is None:
            continue
        wanted: dict[str, Any] = {"session": one.session.get(origin, {})}
        if origin not in done:
            done.add(origin)
            kept = profile.origins.get(origin, Origin())
            wanted["local"] = kept.local
            present = await read_origin(tab.page, origin, [])
            # Databases and caches are in use by the page: touched only where the load has changed them.
            if present is None or present.databases != kept.databases:
                wanted["databases"] = kept.databases
            if present is None or present.caches != kept.caches:
                wanted["caches"] = kept.caches
        problems += [f"{origin}: {what}" for what in await tab.page.evaluate(script("storage"), wanted)]
    await put_cookies(live, profile)


async def put_cookies(live: LiveContext, profile: Profile) -> None:
    """Make the cookies exactly those of the profile, touching only the ones that differ."""
    wanted = _settable(profile)
    present = await live.context.cookies()
    keys = {(c.get("name"), c.get("domain"), c.get("path")) for c in wanted}
    for cookie in present:
        name, domain, path = cookie.get("name"), cookie.get("domain"), cookie.get("path")
        if (name, domain, path) not in keys:
            await live.context.clear_cookies(name=name, domain=domain, path=path)
    known = [dict(cookie) for cookie in present]
    changed = [cookie for cookie in wanted if dict(cookie) not in known]
    if changed:
        await live.context.add_cookies(changed)


async def _remember(tab: LiveTab, wanted: Tab) -> None:
    """What the tab noted in its earlier life goes on being noted."""
    tab.session = {origin: dict(items) for origin, items in wanted.session.items()}
    entries, current = await tab.history()
    if len(entries) == len(wanted.entries):
        for entry, kept in zip(entries, wanted.entries, strict=True):
            tab.states[int(entry["id"])] = kept.state
        if wanted.document is not None:
            tab.posts[int(entries[current]["id"])] = wanted.document
