"""One live browser context: its tabs and everything about them that must be noted while it happens.

A capture can ask a page what it shows now, but not what its tab held earlier. So this notes along the way, from
Playwright's and CDP's events: which requests are under way, sessionStorage of origins that a tab has left,
history.state of entries that it has left, pages that answered a POST, dialogs, downloads and live connections.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, Frame, Page, Request, Response, WebSocket
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.scripts import script
from statefork.adapters.resources.browser.state import Document, Origin

DOCUMENT_BYTES_MAX = 8 * 1024 * 1024
NOTE_SECONDS_MAX = 2.0
CLOSE_SECONDS_MAX = 10.0
# Requests that stay open by design: waiting for their end would be waiting for ever.
_OPEN_ENDED = frozenset({"eventsource", "websocket", "ping"})


def origin_of(url: str) -> str | None:
    """The origin of an http(s) address, as a page would name it; None for others."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" if port in (None, usual) else f"{parts.scheme}://{host}:{port}"


class Seen(msgspec.Struct, kw_only=True):
    """A dialog that a page opened and how it was answered."""

    type: str
    message: str
    answer: str


class LiveTab:
    """One page, with what was noted of its past."""

    def __init__(self, owner: LiveContext, page: Page) -> None:
        self.owner = owner
        self.page = page
        self.crashed = False
        self.closed = False
        self.opener: LiveTab | None = None
        self.session: dict[str, dict[str, str]] = {}
        self.states: dict[int, Any] = {}  # history entry id -> packed history.state
        self.posts: dict[int, Document | None] = {}  # history entry id -> page that answered a POST; None: not kept
        self.sockets: set[str] = set()
        self._cdp: CDPSession | None = None
        self._navigation: Request | None = None
        self._answer: asyncio.Task[Document | None] | None = None
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)
        page.on("framenavigated", self._on_navigated)
        page.on("request", self._on_request)
        page.on("response", self._on_response)
        page.on("websocket", self._on_websocket)
        page.on("download", owner.on_download)
        self.attached = owner.spawn(self._attach())

    async def _attach(self) -> None:
        with contextlib.suppress(PlaywrightError):
            opener = await self.page.opener()
            self.opener = next((tab for tab in self.owner.tabs if tab.page is opener), None)
            cdp = await self.owner.context.new_cdp_session(self.page)
            cdp.on("DOMStorage.domStorageItemAdded", self._on_item)
            cdp.on("DOMStorage.domStorageItemUpdated", self._on_item)
            cdp.on("DOMStorage.domStorageItemRemoved", self._on_item_removed)
            cdp.on("DOMStorage.domStorageItemsCleared", self._on_cleared)
            self._cdp = cdp
            await cdp.send("DOMStorage.enable")

    async def cdp(self) -> CDPSession:
        """The tab's CDP session."""
        await asyncio.shield(self.attached)
        if self._cdp is None:
            raise PlaywrightError("the tab is closed")
        return self._cdp

    async def history(self) -> tuple[list[dict[str, Any]], int]:
        """Entries of the tab's history, oldest first, and the index of the present one."""
        answer = await (await self.cdp()).send("Page.getNavigationHistory")
        return list(answer["entries"]), int(answer["currentIndex"])

    def _on_crash(self, _: Page) -> None:
        self.crashed = True
        self.owner.die()

    def _on_close(self, _: Page) -> None:
        self.closed = True
        self.owner.forget(self)

    def _on_websocket(self, socket: WebSocket) -> None:
        self.sockets.add(socket.url)
        socket.on("close", lambda _: self.sockets.discard(socket.url))

    def _on_request(self, request: Request) -> None:
        if not request.is_navigation_request():
            return
        # A popup's first request comes before its frame is known, and is then that of the page itself.
        with contextlib.suppress(PlaywrightError):
            if request.frame != self.page.main_frame:
                return
        self._navigation, self._answer = request, None

    def _on_response(self, response: Response) -> None:
        if response.request is self._navigation and response.request.method not in ("GET", "HEAD"):
            self._answer = self.owner.spawn(self._keep(response))

    async def _keep(self, response: Response) -> Document | None:
        with contextlib.suppress(PlaywrightError):
            body = await response.body()
            headers = await response.all_headers()
            if len(body) <= DOCUMENT_BYTES_MAX:
                wanted = {k: v for k, v in headers.items() if k in ("content-type", "content-security-policy")}
                text = base64.b64encode(body).decode()
                return Document(url=response.url, status=response.status, headers=wanted, body=text)
        return None

    def _on_navigated(self, frame: Frame) -> None:
        origin = origin_of(frame.url)
        if origin is not None:
            self.owner.touched(origin)
        if frame == self.page.main_frame:
            request, answer = self._navigation, self._answer
            self._navigation = self._answer = None
            self.sockets.clear() if request is not None else None
            self.owner.spawn(self._note(request, answer))

    async def _note(self, request: Request | None, answer: asyncio.Task[Document | None] | None) -> None:
        """Keep what belongs to the history entry that has just become the present one."""
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(NOTE_SECONDS_MAX):
                entries, index = await self.history()
                entry = int(entries[index]["id"])
                if request is not None:  # a new document, and not only a new entry
                    self.posts.pop(entry, None)
                    if request.method not in ("GET", "HEAD"):
                        self.posts[entry] = await answer if answer is not None else None
                noted = await self.page.evaluate(script("past"))
                entries, index = await self.history()
                if int(entries[index]["id"]) == entry:
                    self.states[entry] = noted["state"]
                    origin = origin_of(self.page.url)
                    if origin is not None and noted["session"] is not None:
                        self.session[origin] = noted["session"]

    def _items(self, event: dict[str, Any]) -> dict[str, str] | None:
        where = event["storageId"]
        key = str(where.get("storageKey", "")).rstrip("/")
        if where["isLocalStorage"] or "^" in key:  # a key with a caret is a partition: frames carry those themselves
            return None
        return self.session.setdefault(key, {})

    def _on_item(self, event: dict[str, Any]) -> None:
        items = self._items(event)
        if items is not None:
            items[event["key"]] = event["newValue"]

    def _on_item_removed(self, event: dict[str, Any]) -> None:
        items = self._items(event)
        if items is not None:
            items.pop(event["key"], None)

    def _on_cleared(self, event: dict[str, Any]) -> None:
        items = self._items(event)
        if items is not None:
            items.clear()


class LiveContext:
    """One browser context. All methods run on the asyncio thread."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.tabs: list[LiveTab] = []
        self.hidden: set[Page] = set()  # pages of our own, never a tab
        self.hiding = False
        self.closed = False
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.known: dict[str, Origin | None] = {}  # origin -> what it had stored when last looked at
        self.dirty: set[str] = set()
        self.dialogs: list[Seen] = []
        self.dialog_answer: tuple[str, str] = ("dismiss", "")
        self.downloads: list[Download] = []
        self.unfinished: set[Download] = set()
        self.shown: set[Download] = set()  # finished ones that an observation has told of
        self._active: LiveTab | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests: dict[Request, int] = {}
        self._sequence = 0
        self._moved = asyncio.Event()
        context.on("page", self._on_page)
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_request_end)
        context.on("requestfailed", self._on_request_end)
        context.on("close", self._on_close)

    @property
    def broken(self) -> bool:
        """Whether the context can't go on: the browser died, or the process of one of its pages did."""
        return self.closed or self.death.done()

    def die(self) -> None:
        """Note a death; whoever waits in an operation on this context learns it at once."""
        if not self.death.done():
            self.death.set_result(None)
        self._moved.set()

    # --- tabs

    @property
    def active(self) -> LiveTab:
        """The tab that the agent looks at. Raises PlaywrightError when the context has none."""
        if self._active is None:
            raise PlaywrightError("the browser context has no tab")
        return self._active

    def activate(self, tab: LiveTab) -> None:
        """Make a tab the active one."""
        self._active = tab

    def _on_page(self, page: Page) -> None:
        if self.hiding or page in self.hidden or any(tab.page is page for tab in self.tabs):
            return
        tab = LiveTab(self, page)
        self.tabs.append(tab)
        self._active = tab

    def forget(self, tab: LiveTab) -> None:
        """A page was closed: its tab goes, and its right or left neighbour becomes the active one."""
        if tab not in self.tabs:
            return
        index = self.tabs.index(tab)
        self.tabs.remove(tab)
        if self._active is tab:
            opener = tab.opener if tab.opener in self.tabs else None
            neighbour = self.tabs[min(index, len(self.tabs) - 1)] if self.tabs else None
            self._active = opener or neighbour

    async def new_tab(self) -> LiveTab:
        """Open a blank tab and make it the active one."""
        page = await self.context.new_page()
        self._on_page(page)
        return next(tab for tab in self.tabs if tab.page is page)

    async def hidden_page(self) -> Page:
        """A page of our own, for looking into origins that no tab shows; the caller closes it."""
        self.hiding = True
        try:
            page = await self.context.new_page()
        finally:
            self.hiding = False
        self.hidden.add(page)
        return page

    # --- what is under way

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a note-taker beside; ``noted`` waits for all of them."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def noted(self) -> None:
        """Wait until every note of what has happened so far is taken."""
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=NOTE_SECONDS_MAX)

    def _on_request(self, request: Request) -> None:
        if request.resource_type not in _OPEN_ENDED:
            self._sequence += 1
            self._requests[request] = self._sequence

    def _on_request_end(self, request: Request) -> None:
        self._requests.pop(request, None)
        self._moved.set()

    @property
    def sequence(self) -> int:
        """Number of the last request: a moment that ``in_flight`` can be asked about."""
        return self._sequence

    def in_flight(self, since: int = 0) -> list[Request]:
        """Requests under way that began after the moment ``since``."""
        return [request for request, number in self._requests.items() if number > since]

    async def quiet(self, since: int, seconds_max: float) -> bool:
        """Wait until no request that began after ``since`` is under way; False when the time ran out first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self.in_flight(since):
                    self._moved.clear()
                    await self._moved.wait()
                return True
        return False

    def _on_dialog(self, dialog: Dialog) -> None:
        self.spawn(self._answer(dialog))

    async def _answer(self, dialog: Dialog) -> None:
        answer, text = self.dialog_answer
        if dialog.type in ("alert", "beforeunload"):
            answer = "accept"
        self.dialogs.append(Seen(type=dialog.type, message=dialog.message, answer=answer))
        with contextlib.suppress(PlaywrightError):
            if answer == "accept":
                await dialog.accept(text if dialog.type == "prompt" else "")
            else:
                await dialog.dismiss()

    def on_download(self, download: Download) -> None:
        """A page began a download."""
        self.downloads.append(download)
        self.unfinished.add(download)
        self.spawn(self._finish(download))

    async def _finish(self, download: Download) -> None:
        with contextlib.suppress(PlaywrightError):
            await download.failure()  # returns when it has ended, well or not
        self.unfinished.discard(download)

    # --- storage

    def touched(self, origin: str) -> None:
        """A document of this origin was loaded: what it has stored may change from here on."""
        self.known.setdefault(origin, None)
        self.dirty.add(origin)

    # --- end

    def _on_close(self, _: BrowserContext) -> None:
        self.closed = True
        self.die()

    async def close(self) -> None:
        """Close the context and join every note-taker. Idempotent; a dead browser's context counts as closed.

        A browser that stands still has been told, and closes it when it goes on.
        """
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self.context.close()
        self.closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
