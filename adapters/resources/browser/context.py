"""One live browser context: its tabs and everything about them that must be noted while it happens.

A capture can ask a page what it shows now, but not what its tab held earlier. So this notes along the way, from
Playwright's and CDP's events: which requests are under way, sessionStorage of origins that a tab has left,
history.state of entries that it has left, pages that answered a POST, dialogs, downloads and live connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from playwright.async_api import BrowserContext, Dialog, Download, Page, Request
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.conditions import PageConditions
from statefork.adapters.resources.browser.state import Origin
from statefork.adapters.resources.browser.tab import KEEP_SECONDS_MAX, NOTE_SECONDS_MAX, LiveTab

T = TypeVar("T")

CLOSE_SECONDS_MAX = 10.0
_SPARE_ANSWERS_S = 3.0  # at once, unless something is wrong with it: then a new one is made sooner than that
# Requests that stay open by design: waiting for their end would be waiting for ever.
_OPEN_ENDED = frozenset({"eventsource", "websocket", "ping"})


class Seen(msgspec.Struct, kw_only=True):
    """A dialog that a page opened and how it was answered."""

    type: str
    message: str
    answer: str


class LiveContext:
    """One browser context. All methods run on the asyncio thread."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.tabs: list[LiveTab] = []
        self.hidden: set[Page] = set()  # pages of our own, never a tab
        self.hiding = False
        self.laying_out = False  # a past is made up on empty pages, of which nothing needs to be noted
        self.closed = False
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.known: dict[str, Origin | None] = {}  # origin -> what it had stored when last looked at
        self.dirty: set[str] = set()
        self.conditions: PageConditions | None = None  # None: chance and time are real
        self.selectors: tuple[str, ...] = ()  # which elements are taken out for a second look
        self.dialogs: list[Seen] = []
        self.dialog_answer: tuple[str, str] = ("dismiss", "")
        self.downloads: list[Download] = []
        self.unfinished: set[Download] = set()
        self.shown: set[Download] = set()  # finished ones that an observation has told of
        self._active: LiveTab | None = None
        self._spare: LiveTab | None = None  # opened before it was wanted
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[None]] = set()  # what waits for the end of a download
        self._followers: set[asyncio.Task[Any]] = set()  # for which nobody waits
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

    def show(self, page: Page) -> None:
        """A page was brought to front: its tab is the active one."""
        self._active = next((tab for tab in self.tabs if tab.page == page), self._active)

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
        if self._spare is not None and self._spare in self.tabs:
            self._active, self._spare = self._spare, None
            return self._active
        page = await self.context.new_page()
        self._on_page(page)
        return next(tab for tab in self.tabs if tab.page is page)

    async def make_spare(self) -> None:
        """Open the first tab, debugger and all, which ``new_tab`` then gives.

        Its process compiles the scripts by which Playwright looks at pages; on each later page that takes 30 ms less.
        """
        tab = await self.new_tab()
        await tab.cdp()
        await tab.page.locator(":root").count()
        self._spare = tab

    async def spare_answers(self) -> bool:
        """Whether its process is there, and does something."""
        if self.broken or self._spare is None:
            return False
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(_SPARE_ANSWERS_S):
                await self._spare.page.evaluate("1")
                return not self.broken
        return False

    async def drop_spare(self) -> None:
        """Close it, if no tab was wanted."""
        if self._spare is not None:
            await self._spare.page.close()
            self._spare = None

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

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a note-taker beside; ``noted`` waits for all of them."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def follow(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something beside that may take as long as a page does; it ends with the context."""
        task = asyncio.create_task(work)
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)
        return task

    async def noted(self) -> None:
        """Wait until every note of what has happened so far is taken."""
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=KEEP_SECONDS_MAX + NOTE_SECONDS_MAX)
        if self._finishing:
            await asyncio.wait(set(self._finishing), timeout=NOTE_SECONDS_MAX)
        await asyncio.gather(*[tab.kept() for tab in self.tabs])

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

    def under_way(self, request: Request) -> bool:
        """Whether its answer has not ended."""
        return request in self._requests

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
        task = self.follow(self._finish(download))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

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
        for task in (left := self._tasks | self._followers):
            task.cancel()
        if left:
            await asyncio.wait(left)
