"""One page of a live context, with what is noted of its past. Lives on the asyncio thread."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag

from playwright.async_api import CDPSession, Frame, Page, Request, WebSocket
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.debugger import enable
from statefork.adapters.resources.browser.scripts import script
from statefork.adapters.resources.browser.state import Document, origin_of
from statefork.journal.values import Conditions

if TYPE_CHECKING:
    from statefork.adapters.resources.browser.context import LiveContext

DOCUMENT_BYTES_MAX = 8 * 1024 * 1024
NOTE_SECONDS_MAX = 2.0  # for a page that may be busy
KEEP_SECONDS_MAX = 10.0  # for the browser, whose answer comes whatever the page does; long only on a crowded machine
_OF_AN_ANSWER = ("content-type", "content-security-policy")
# What an answer says of how it came, or sets: the page that was made from it has no use for it.
_OF_THE_WAY = ("connection", "content-encoding", "content-length", "keep-alive", "set-cookie", "transfer-encoding")
_GETS = ("GET", "HEAD")


class Answer:
    """What a server said that a page was made from."""

    def __init__(self, request: Request | None, document: Document | None = None) -> None:
        self.request = request
        self.document = document  # None: not kept, or not yet


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
        self.posts: dict[int, Answer] = {}  # history entry id -> what answered a POST
        self.sockets: set[str] = set()
        self._cdp: CDPSession | None = None
        self.conditions: Conditions | None = None  # under which its page was loaded
        self.answer: Answer | None = None  # what the present page was made from
        self._keeping: asyncio.Task[None] | None = None  # what keeps it
        self._navigation: Request | None = None
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)
        page.on("framenavigated", self._on_navigated)
        page.on("request", self._on_request)
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
            await enable(cdp)

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
        self._navigation = request

    async def _keep(self, request: Request) -> Document | None:
        """The answer from which a page was made. Asked for by its request: news of it may come after the page has."""
        got = request.method in _GETS
        with contextlib.suppress(PlaywrightError):
            response = await request.response()
            if response is None:
                return None
            body = await response.body()
            headers = await response.all_headers()
            if len(body) <= DOCUMENT_BYTES_MAX:
                wanted = {k: v for k, v in headers.items() if (k not in _OF_THE_WAY if got else k in _OF_AN_ANSWER)}
                text = base64.b64encode(body).decode()
                status = 200 if response.status == HTTPStatus.NOT_MODIFIED else response.status
                return Document(url=response.url, status=status, headers=wanted, body=text)
        return None

    async def _fill(self, answer: Answer, request: Request) -> None:
        answer.document = await self._keep(request)

    async def kept(self) -> None:
        """Wait until the answer that the page was made from is kept, if it has come to its end."""
        request = self.answer.request if self.answer is not None else None
        if self._keeping is not None and request is not None and not self.owner.under_way(request):
            await asyncio.wait({self._keeping}, timeout=KEEP_SECONDS_MAX)

    def _on_navigated(self, frame: Frame) -> None:
        origin = origin_of(frame.url)
        if origin is not None:
            self.owner.touched(origin)
        if frame == self.page.main_frame:
            request = self._navigation if self._leads_to(frame) else None
            if request is not None:
                self._navigation = None
                self.sockets.clear()
                self.conditions = self.owner.conditions.present if self.owner.conditions is not None else None
            if not self.owner.laying_out:
                self.owner.spawn(self._note(request))

    def _leads_to(self, frame: Frame) -> bool:
        """Whether it shows what the navigation asked for: a script may change the address while that is awaited."""
        if self._navigation is None:
            return False
        return origin_of(frame.url) is None or urldefrag(frame.url).url == urldefrag(self._navigation.url).url

    async def _note(self, request: Request | None) -> None:
        """Keep what belongs to the history entry that has just become the present one."""
        if (
            request is not None
        ):  # a new document, and not only a new entry; it can be used long before it has come whole
            self.answer = answer = Answer(request)
            self._keeping = self.owner.follow(self._fill(answer, request))
        noted = None
        # The page tells of its navigation before the browser has put that into the history: so the page is asked first.
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(NOTE_SECONDS_MAX):
                noted = await self.page.evaluate(script("past"))
        with contextlib.suppress(PlaywrightError, TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS_MAX):
                entries, index = await self.history()
            entry = int(entries[index]["id"])
            if request is not None:
                made = _entry_of(request, entries[: index + 1])
                self.posts.pop(made, None)
                if request.method not in _GETS:
                    self.posts[made] = answer
            if noted is not None and noted["url"] == entries[index]["url"]:
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


def _entry_of(request: Request, entries: list[dict[str, Any]]) -> int:
    """The history entry that a document is shown at: the last one, unless its page has led elsewhere by now."""
    where = urldefrag(request.url).url
    at = (int(entry["id"]) for entry in reversed(entries) if urldefrag(entry["url"]).url == where)
    return next(at, int(entries[-1]["id"]))
