"""Making a context what a :class:`Profile` says. Runs on the asyncio thread.

History and storage are laid out on empty stub pages, without a request; then each tab goes to its entry, the stubs are
taken away and the page is loaded once, so the server sees one GET per tab. Where nothing needs a stub at the tab's last
entry, that entry is made by the load itself. What the load's scripts and answers changed (cookies, storage) is put back
afterwards, and the views are applied.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import urldefrag, urljoin

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import FilePayload, Page, Response, Route
from playwright.async_api import Frame as PageFrame

from statefork.adapters.resources.browser.answering import answered_with
from statefork.adapters.resources.browser.capture import answer_with_stub, open_stub, read_origin
from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.scripts import script
from statefork.adapters.resources.browser.settle import settle
from statefork.adapters.resources.browser.state import (
    Document,
    Entry,
    Frame,
    Origin,
    Profile,
    Tab,
    of_the_first_page,
    origin_of,
)
from statefork.adapters.resources.browser.tab import Answer, LiveTab
from statefork.engine.errors import ResourceFailed

LOAD_TIMEOUT_MS = 30_000
SETTLE_SECONDS_MAX = 5.0
_BLANK = "about:blank"
_DETOUR = "/an-entry-that-becomes-another"  # on a stub: nobody is asked for it


async def restore(live: LiveContext, profile: Profile, documents: Sequence[Document | None] = ()) -> list[str]:
    """Fill an empty context. Returns what could not be put back, each as a short sentence.

    ``documents``: what the tabs' pages are made from; of others the server is asked. Raises PlaywrightError when a page
    does not load.
    """
    if profile.start:
        first = of_the_first_page(profile.start)
        if live.conditions is not None:
            await live.conditions.for_documents(first)
        tab = await live.new_tab()
        if live.conditions is not None and profile.start == _BLANK:
            await live.conditions.for_blank(first, tab.page)
        if profile.start != _BLANK:
            answer = await tab.page.goto(profile.start, timeout=LOAD_TIMEOUT_MS)
            _accept(0, answer)
            await settle(live, tab, 0, SETTLE_SECONDS_MAX)
        return []
    problems: list[str] = []
    live.laying_out = True
    await asyncio.gather(live.context.add_cookies(_settable(profile)), live.context.route("**/*", answer_with_stub))
    tabs = await _open_tabs(live, profile)
    waiting = dict(profile.origins)
    pairs = list(zip(tabs, profile.tabs, strict=True))
    await asyncio.gather(*[_lay_out(live, tab, one, profile, waiting, problems) for tab, one in pairs])
    await _fill_origins(live, waiting, problems)
    await live.context.unroute("**/*", answer_with_stub)
    await _register_workers(live, tabs, profile, problems)
    before = live.sequence
    live.dirty.clear()
    live.laying_out = False
    delivered = [*documents, *[None] * (len(pairs) - len(documents))]
    loads = [_load(tab, one, profile, document) for (tab, one), document in zip(pairs, delivered, strict=True)]
    await asyncio.gather(*loads)
    for tab in tabs:
        await settle(live, tab, before, SETTLE_SECONDS_MAX)
    for number, (tab, one) in enumerate(pairs):
        problems += [f"tab {number}: {what}" for what in await _apply(tab, one)]
    await _put_back(live, tabs, profile, problems)
    await live.noted()
    for (tab, one), document in zip(pairs, delivered, strict=True):
        await _remember(tab, one, document, problems)
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
    await live.drop_spare()
    return tabs


def _made_by_its_load(tab: Tab, profile: Profile) -> bool:
    """Whether the load can make the last entry of a tab's history: nothing has to be there before it on a stub.

    Not where the entry has a state or the window a name (the page may read them while it loads), where it is shown
    again from what was kept, or where no earlier entry is of its origin, whose storage or workers the page may meet.
    """
    if len(tab.entries) < 2 or tab.current != len(tab.entries) - 1 or tab.document is not None or tab.status < 0:
        return False
    before, last = tab.entries[-2:]
    origin = origin_of(last.url)
    if origin is None or last.same_document or last.state is not None:
        return False
    if urldefrag(last.url).url == urldefrag(before.url).url:  # going there would load nothing, or add no entry
        return False
    if tab.frames and tab.frames[0].view["name"] and origin != origin_of(before.url):
        return False
    kept = profile.origins.get(origin, Origin())
    there = origin in {origin_of(entry.url) for entry in tab.entries[:-1]}
    return not kept.workers and (there or (kept == Origin() and not tab.session.get(origin)))


async def _lay_out(
    live: LiveContext,
    tab: LiveTab,
    wanted: Tab,
    profile: Profile,
    waiting: dict[str, Origin],
    problems: list[str],
) -> None:
    """History, storage of the origins on the way, window.name; ends on the present entry, all of it stubs.

    Where the load makes the present entry, it ends on the one before.
    """
    page = tab.page
    visited = {origin_of(entry.url) for entry in wanted.entries}
    strangers = [origin for origin in wanted.session if origin not in visited]
    for stranger in strangers:
        await page.goto(stranger + "/")
        await _fill(page, stranger, wanted, waiting, problems)
    first = wanted.entries[0].url
    fresh = not strangers and first == _BLANK
    laid_out = wanted.entries[:-1] if _made_by_its_load(wanted, profile) else wanted.entries
    for index, entry in enumerate(laid_out):
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
    if wanted.current == len(wanted.entries) - 1:
        return
    entries, _ = await tab.history()
    if len(entries) == len(wanted.entries):  # otherwise it is told of at the end
        async with page.expect_event("framenavigated"):
            await (await tab.cdp()).send("Page.navigateToHistoryEntry", {"entryId": entries[wanted.current]["id"]})


async def _add_entry(page: Page, entry: Entry, referrer: str) -> None:
    origin = origin_of(entry.url)
    shown = entry.url != _BLANK and urldefrag(entry.url).url == urldefrag(page.url).url
    if shown and entry.other_document is True:
        # Going to the address that is shown makes no other document: there by way of another address.
        await page.goto(urljoin(entry.url, _DETOUR), referer=referrer or None)
        await page.evaluate(script("push"), {"state": entry.state, "url": entry.url, "replace": True})
        return
    if entry.same_document or (shown and entry.url == page.url):
        # Going to the address that is shown would reload it and add no entry, so that also becomes a pushState.
        await page.evaluate(script("push"), {"state": entry.state, "url": entry.url, "replace": False})
        return
    url = entry.url if origin is not None else _BLANK
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


async def _load(tab: LiveTab, wanted: Tab, profile: Profile, document: Document | None) -> None:
    """The one real load of a tab, under the conditions of its first: what its scripts drew then is drawn again."""
    given = tab.owner.conditions
    async with contextlib.AsyncExitStack() as stack:
        if given is not None:
            await stack.enter_async_context(given.of(tab.page, wanted.conditions))
        if answer := wanted.document or document:
            url = wanted.entries[wanted.current].url
            await stack.enter_async_context(answered_with(await tab.cdp(), answer, url))
        if _made_by_its_load(wanted, profile):
            url, referrer = wanted.entries[-1].url, wanted.referrer or None
            _accept(wanted.status, await tab.page.goto(url, referer=referrer, timeout=LOAD_TIMEOUT_MS))
        else:
            await _reload(tab, wanted)


async def _reload(tab: LiveTab, wanted: Tab) -> None:
    page = tab.page
    if origin_of(page.url) is None:
        return
    if wanted.status < 0:
        with contextlib.suppress(PlaywrightError):  # it was an error page then, and may be one again
            await page.reload(timeout=LOAD_TIMEOUT_MS)
        return
    _accept(wanted.status, await page.reload(timeout=LOAD_TIMEOUT_MS))


def _accept(status: int, answer: Response | None) -> None:
    """A server's failure where there was none is no restored page: better no successor than a broken one."""
    if answer is not None and answer.status >= 500 and answer.status != status:
        raise ResourceFailed(f"{answer.url} answered {answer.status}", url=answer.url, status=answer.status)


async def _apply(tab: LiveTab, wanted: Tab) -> list[str]:
    problems: list[str] = []
    for frame in wanted.frames:
        found = _frame_at(tab.page.main_frame, frame.at)
        if found is None:
            problems.append(f"frame {frame.at} is not there")
            continue
        if frame.at and found.url != frame.view["url"] and origin_of(frame.view["url"]) is not None:
            await _lead(found, frame.view["url"])
        problems += await _apply_frame(found, frame)
    return problems


async def _lead(frame: PageFrame, url: str) -> None:
    """A frame to the page that it showed; its entry in the tab's history is there already."""
    async with frame.expect_navigation(url=lambda there: there == url, timeout=LOAD_TIMEOUT_MS):
        await frame.evaluate("url => { location.replace(url) }", url)


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
    work: list[Awaitable[None]] = [put_cookies(live, profile)]
    for tab, one in zip(tabs, profile.tabs, strict=True):
        origin = origin_of(tab.page.url)
        if origin is not None:
            kept = profile.origins.get(origin, Origin()) if origin not in done else None
            done.add(origin)
            work.append(_put_back_storage(tab.page, origin, one.session.get(origin, {}), kept, problems))
    await asyncio.gather(*work)


async def _put_back_storage(
    page: Page, origin: str, session: dict[str, str], kept: Origin | None, problems: list[str]
) -> None:
    wanted: dict[str, Any] = {"session": session}
    if kept is not None:
        wanted["local"] = kept.local
    putting = page.evaluate(script("storage"), wanted)
    if kept is None:
        told = await putting
    else:
        told, present = await asyncio.gather(putting, read_origin(page, origin, []))
        # Databases and caches are in use by the page: touched only where the load has changed them.
        again = {}
        if present is None or present.databases != kept.databases:
            again["databases"] = kept.databases
        if present is None or present.caches != kept.caches:
            again["caches"] = kept.caches
        if again:
            told += await page.evaluate(script("storage"), again)
    problems += [f"{origin}: {what}" for what in told]


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


async def _remember(tab: LiveTab, wanted: Tab, document: Document | None, problems: list[str]) -> None:
    """What the tab noted in its earlier life goes on being noted."""
    tab.session = {origin: dict(items) for origin, items in wanted.session.items()}
    entries, current = await tab.history()
    if len(entries) != len(wanted.entries):
        problems.append(f"the history of {tab.page.url} has {len(entries)} entries, not {len(wanted.entries)}")
        return
    for entry, kept in zip(entries, wanted.entries, strict=True):
        tab.states[int(entry["id"])] = kept.state
    tab.conditions = wanted.conditions
    if wanted.document is not None:
        tab.posts[int(entries[current]["id"])] = Answer(None, wanted.document)
    if document is not None:
        tab.answer = Answer(None, document)
