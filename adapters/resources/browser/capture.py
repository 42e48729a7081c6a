"""Reading a live context into a :class:`Profile`. Runs on the asyncio thread.

Each frame is read in one evaluation, so its view is of one moment; cookies and what the pages' origins have stored are
asked for together with the views. What can't be carried becomes a flag.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urldefrag, urlsplit

import msgspec
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Frame as PageFrame
from playwright.async_api import Page, Route

from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.scripts import script
from statefork.adapters.resources.browser.state import (
    Document,
    Entry,
    Flag,
    Frame,
    Origin,
    Profile,
    Stored,
    Tab,
    origin_of,
)
from statefork.adapters.resources.browser.tab import LiveTab

FRAME_SECONDS_MAX = 5.0
ORIGIN_SECONDS_MAX = 30.0
FILE_BYTES_MAX = 16 * 1024 * 1024
ORIGIN_CHARS_MAX = 64 * 1024 * 1024
FRAMES_MAX = 64

STUB = "<!doctype html><title>.</title>"
_CARRIED = ("x", "y", "fields", "scrolls", "opens", "focus", "selection", "name")


async def answer_with_stub(route: Route) -> None:
    """An empty page for any address: a place from which an origin's storage can be reached, with no request made."""
    await route.fulfill(status=200, content_type="text/html", headers={"cache-control": "no-store"}, body=STUB)


async def capture(live: LiveContext) -> Stored:
    """The context's content. Raises PlaywrightError when the browser has died."""
    await live.noted()
    flags: list[Flag] = []
    tabs = tuple(live.tabs)
    reading = [asyncio.ensure_future(_read_tab(live, number, tab, flags)) for number, tab in enumerate(tabs)]
    early = _Early(live)
    cookies = asyncio.ensure_future(read_cookies(live))
    try:
        seen = await asyncio.gather(*reading)
        unreadable = {tab for tab, (one, _) in zip(tabs, seen, strict=True) if not one.frames or one.frames[0].at}
        origins = await _read_origins(live, unreadable, early, flags)
        jar = await cookies
    finally:
        await early.end(cookies, *reading)
    for download in live.downloads:
        how = "under way" if download in live.unfinished else "finished; the file is not part of the profile"
        flags.append(Flag(kind="download", where=download.suggested_filename, detail=how))
    profile = Profile(
        cookies=jar,
        origins=origins,
        tabs=tuple(one for one, _ in seen),
        active=live.tabs.index(live.active) if live.tabs else 0,
        flags=tuple(sorted(set(flags))),
    )
    return Stored(
        profile=profile,
        witnesses=tuple(witness for _, witness in seen),
        documents=tuple(_delivered(tab, one) for tab, (one, _) in zip(tabs, seen, strict=True)),
    )


def _delivered(tab: LiveTab, captured: Tab) -> Document | None:
    """The answer to a GET that the page was made from, unless its script has given it another address since."""
    document = tab.answer.document if tab.answer is not None else None
    if document is None or captured.document is not None:
        return None
    shown = captured.entries[captured.current].url
    return document if urldefrag(document.url).url == urldefrag(shown).url else None


class _Early:
    """Origins that are being read while the views still are: those of the tabs' own pages."""

    def __init__(self, live: LiveContext) -> None:
        self._reading: dict[PageFrame, tuple[asyncio.Task[Origin | None], list[Flag]]] = {}
        for origin, frame in _shown(live, set()).items():
            if origin in live.known and frame.parent_frame is None:
                flags: list[Flag] = []
                self._reading[frame] = asyncio.create_task(read_origin(frame, origin, flags)), flags

    async def read(self, frame: PageFrame, origin: str, flags: list[Flag]) -> Origin | None:
        """As ``read_origin``, where it has begun already."""
        if frame not in self._reading:
            return await read_origin(frame, origin, flags)
        reading, noted = self._reading[frame]
        found = await reading
        flags.extend(noted)
        return found

    async def end(self, *beside: asyncio.Future[Any]) -> None:
        """Join what is left: of a page whose view could not be read, nothing more is waited for."""
        left = [*beside, *[reading for reading, _ in self._reading.values()]]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def read_cookies(live: LiveContext) -> tuple[dict[str, Any], ...]:
    """Every cookie of the context, in one order."""
    return tuple(sorted((dict(cookie) for cookie in await live.context.cookies()), key=_cookie_key))


def _cookie_key(cookie: dict[str, Any]) -> tuple[str, str, str, str]:
    return cookie["domain"], cookie["path"], cookie["name"], str(cookie.get("partitionKey", ""))


async def _read_tab(live: LiveContext, number: int, tab: LiveTab, flags: list[Flag]) -> tuple[Tab, str]:
    where = f"tab {number}"
    (history, current), frames = await asyncio.gather(tab.history(), _read_frames(tab, where, flags))
    top: dict[str, Any] = frames[0][1] if frames and not frames[0][0] else {}
    entries = _entries(tab, history, current, top, where, flags)
    present = int(history[current]["id"])
    document = None
    if present in tab.posts:
        document = tab.posts[present].document
        kept = "shown again from the answer that was kept; a reload would GET it" if document else "could not be kept"
        flags.append(Flag(kind="post-result", where=where, detail=f"{history[current]['url']}: {kept}"))
    flags.extend(Flag(kind="live-connection", where=where, detail=url) for url in sorted(tab.sockets))
    session = {origin: items for origin, items in tab.session.items() if items}
    origin = str(top.get("origin", "null"))
    if top.get("session") is not None and origin_of(origin) is not None:
        tab.session[origin] = top["session"]
        session.pop(origin, None)
        if top["session"]:
            session[origin] = top["session"]
    captured = Tab(
        entries=entries,
        current=current,
        opener=live.tabs.index(tab.opener) if tab.opener in live.tabs and top.get("opened") else None,
        session=session,
        frames=tuple(_frame(at, view, origin) for at, view in frames),
        document=document,
        status=int(top.get("status", 0)),
        referrer=str(top.get("referrer", "")),
        conditions=tab.conditions,
    )
    return captured, str(top.get("witness", ""))


def _frame(at: tuple[int, ...], view: dict[str, Any], top_origin: str) -> Frame:
    carried = {key: view[key] for key in _CARRIED}
    if not at:
        return Frame(at=at, view=carried)
    carried["url"] = view["url"]
    foreign = view["origin"] != top_origin and origin_of(view["origin"]) is not None
    return Frame(
        at=at, view=carried, session=view["session"] if foreign else None, local=view["local"] if foreign else None
    )


def _entries(
    tab: LiveTab, history: list[dict[str, Any]], current: int, top: dict[str, Any], where: str, flags: list[Flag]
) -> tuple[Entry, ...]:
    # The Navigation API knows the run of same-origin entries around the present one, and which share a document.
    same = list(top.get("sameDocument", []))
    offset = current - int(top.get("entryIndex", 0))
    entries = []
    for index, entry in enumerate(history):
        ident, url = int(entry["id"]), str(entry["url"])
        near = index - offset
        # "Same document as the present entry", for both neighbours, means: made from the one before it.
        pair = {bool(same[near]), bool(same[near - 1])} if 0 < near < len(same) else set()
        linked = pair == {True}
        state = top.get("state") if index == current else tab.states.get(ident)
        if index != current and linked and ident not in tab.states:
            flags.append(Flag(kind="history-state", where=where, detail=url))
        if index != current and ident in tab.posts:
            flags.append(Flag(kind="history-post", where=where, detail=f"{url}: going back to it would GET it"))
        if origin_of(url) is None and url != "about:blank":
            flags.append(Flag(kind="unreachable-page", where=where, detail=url.split(",")[0][:200]))
        apart = True if len(pair) == 2 else msgspec.UNSET
        entries.append(Entry(url=url, state=state, same_document=linked, other_document=apart))
    return tuple(entries)


async def _read_frames(tab: LiveTab, where: str, flags: list[Flag]) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    placed = list(_placed(tab.page.main_frame, ()))
    if len(placed) > FRAMES_MAX:
        flags.append(Flag(kind="frame-unreadable", where=where, detail=f"more than {FRAMES_MAX} frames"))
    views = await asyncio.gather(*[_read_frame(tab, frame) for _, frame in placed[:FRAMES_MAX]])
    found = []
    for (at, frame), view in zip(placed, views, strict=False):
        if isinstance(view, str):
            flags.append(Flag(kind="frame-unreadable", where=where, detail=f"{frame.url}: {view}"))
            continue
        flags.extend(Flag(kind="history-value", where=where, detail=str(what)) for what in view["lost"])
        flags.extend(Flag(kind=kind, where=where, detail=detail) for kind, detail in view["notes"])
        found.append((at, view))
    return found


def _placed(frame: PageFrame, at: tuple[int, ...]) -> list[tuple[tuple[int, ...], PageFrame]]:
    children = [pair for index, child in enumerate(frame.child_frames) for pair in _placed(child, (*at, index))]
    return [(at, frame), *children]


async def _read_frame(tab: LiveTab, frame: PageFrame) -> dict[str, Any] | str:
    if tab.crashed:
        return "its process has crashed"
    try:
        async with asyncio.timeout(FRAME_SECONDS_MAX):
            wanted = {"fileBytesMax": FILE_BYTES_MAX, "topOrigin": origin_of(tab.page.url) or "null"}
            view: dict[str, Any] = await frame.evaluate(script("view"), wanted)
            return view
    except TimeoutError:
        return "does not answer"
    except PlaywrightError as error:
        if frame == tab.page.main_frame and not frame.is_detached() and not tab.crashed:
            raise
        return error.message.splitlines()[0]


async def _read_origins(
    live: LiveContext, unreadable: set[LiveTab], early: _Early, flags: list[Flag]
) -> dict[str, Origin]:
    shown = _shown(live, unreadable)
    hidden: Page | None = None
    try:
        for origin in sorted(live.known):
            if origin in shown:
                live.known[origin] = await early.read(shown[origin], origin, flags)
            elif origin in live.dirty or live.known[origin] is None:
                if hidden is None:
                    hidden = await open_stub(live)
                await hidden.goto(origin + "/")
                live.known[origin] = await read_origin(hidden, origin, flags)
        # An origin that some page still shows may be written at any time; another one can't be until it is loaded.
        live.dirty = {origin_of(frame.url) or "" for tab in live.tabs for frame in tab.page.frames}
    finally:
        if hidden is not None:
            await hidden.close()
            live.hidden.discard(hidden)
    return {origin: kept for origin, kept in sorted(live.known.items()) if kept is not None and kept != Origin()}


def _shown(live: LiveContext, unreadable: set[LiveTab]) -> dict[str, PageFrame]:
    """A frame for each origin that is shown, whose storage is not partitioned: a tab's own page, or one of its site."""
    shown: dict[str, PageFrame] = {}
    readable = [tab for tab in live.tabs if tab not in unreadable and not tab.crashed]
    for tab in readable:
        origin = origin_of(tab.page.url)
        if origin is not None:
            shown.setdefault(origin, tab.page.main_frame)
    for tab in readable:
        top = urlsplit(tab.page.url).hostname or ""
        for frame in tab.page.frames[1:]:
            origin, host = origin_of(frame.url), urlsplit(frame.url).hostname or ""
            # Without a list of public suffixes only these are surely of one site.
            if origin is not None and (host == top or host.endswith(f".{top}") or top.endswith(f".{host}")):
                shown.setdefault(origin, frame)
    return shown


async def open_stub(live: LiveContext) -> Page:
    """A hidden page on which every address is an empty one, also where a service worker would answer."""
    page = await live.hidden_page()
    await page.route("**/*", answer_with_stub)
    cdp = await live.context.new_cdp_session(page)
    await cdp.send("Network.enable")
    await cdp.send("Network.setBypassServiceWorker", {"bypass": True})
    return page


async def read_origin(page: Page | PageFrame, origin: str, flags: list[Flag]) -> Origin | None:
    """What an origin has stored, read in a page of it; None, and a flag, when the page does not answer."""
    try:
        async with asyncio.timeout(ORIGIN_SECONDS_MAX):
            read = await page.evaluate(script("origin"), {"charsMax": ORIGIN_CHARS_MAX})
    except TimeoutError:
        flags.append(Flag(kind="origin-unreadable", where=origin, detail="does not answer"))
        return None
    for kind, detail in read["notes"]:
        flags.append(Flag(kind=kind, where=origin, detail=detail))
    return Origin(local=read["local"], databases=read["databases"], caches=read["caches"], workers=read["workers"])
