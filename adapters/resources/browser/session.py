"""One environment's stay in the browser: a context that was made from a profile, and what is done to it as a whole.

All methods run on the asyncio thread. The death of the browser, or of a page's process, ends every operation at once
with RuntimeDied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from statefork.adapters.resources.browser.actions import AnyAction
from statefork.adapters.resources.browser.capture import capture, read_cookies
from statefork.adapters.resources.browser.conditions import PageConditions
from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.host import BrowserHost
from statefork.adapters.resources.browser.pause import Paused
from statefork.adapters.resources.browser.perform import Look, look, perform
from statefork.adapters.resources.browser.restore import restore
from statefork.adapters.resources.browser.settle import settle, twice
from statefork.adapters.resources.browser.state import Document, Stored, changes, digest_of
from statefork.engine.errors import ResourceFailed, RuntimeDied
from statefork.journal.values import Conditions

T = TypeVar("T")

QUIET_SECONDS_MAX = 1.0
ANSWER_SECONDS_MAX = 10.0
RESTORE_SECONDS_MAX = 120.0
DIFFERENCES_MAX = 50

DIED = "the browser, or the process of one of its pages, has died"


class Session:
    """A live context with a baseline: what a capture gave when its content was last that of a sealed version."""

    def __init__(self, resource: str, live: LiveContext) -> None:
        self._resource = resource
        self.live = live
        self.baseline = ""
        self._documents: tuple[Document | None, ...] = ()  # what the tabs' pages were made from then
        self.differences: tuple[str, ...] = ()
        self.unlike_behind: tuple[str, ...] = ()  # tabs that are not shown, whose text differs
        self._held: Stored | None = None
        self._paused: Paused | None = None
        self._since = 0  # requests that were begun before this one are not waited for

    @classmethod
    async def make(
        cls, resource: str, host: BrowserHost, determinism: str, ready: LiveContext | None, **options: Any
    ) -> Session:
        """An empty context, or the one that is ``ready``. Raises RuntimeDied."""
        try:
            live = ready or await host.new_context(**options)
            if determinism != "off":
                live.conditions = PageConditions(live.context, strict=determinism == "strict")
            return cls(resource, live)
        except PlaywrightError as error:
            raise RuntimeDied(f"the browser can't make a context: {_line(error)}", resource=resource) from error

    async def fill(self, stored: Stored, conditions: Conditions | None) -> None:
        """Restore a profile, compare what a capture gives then, and let the pages go on under these conditions.

        Raises ResourceFailed, RuntimeDied.
        """
        await self._guarded(self._fill(stored, conditions))

    async def _fill(self, stored: Stored, conditions: Conditions | None) -> None:
        given = self.live.conditions if conditions is not None else None
        try:
            async with asyncio.timeout(RESTORE_SECONDS_MAX):
                if given is not None and conditions is not None:
                    await given.for_documents(conditions)
                problems = await restore(self.live, stored.profile, stored.documents)
                await self._set(conditions)
        except TimeoutError:
            raise ResourceFailed(
                f"the profile was not restored within {RESTORE_SECONDS_MAX:.0f} s", resource=self._resource
            ) from None
        present = await capture(self.live)
        self.rebase(present)
        if not stored.profile.start:
            unflagged = [msgspec.structs.replace(one.profile, flags=()) for one in (stored, present)]
            problems += [f"{change.kind} {change.name}" for change in changes(*unflagged)]
            pairs = zip(stored.witnesses, present.witnesses, strict=False)
            unlike = {number: f"tab {number}: its text differs" for number, (a, b) in enumerate(pairs) if a != b}
            problems += unlike.values()
            self.unlike_behind = tuple(what for number, what in unlike.items() if number != stored.profile.active)
        self.differences = tuple(problems[:DIFFERENCES_MAX])

    def is_baseline(self, stored: Stored) -> bool:
        """Whether nothing is other than at the baseline, nor was anything loaded anew since."""
        return digest_of(stored.profile) == self.baseline and stored.documents == self._documents

    def rebase(self, stored: Stored) -> str:
        """Take a content for the baseline; returns its digest."""
        self.baseline, self._documents = digest_of(stored.profile), stored.documents
        return self.baseline

    async def _set(self, conditions: Conditions | None) -> None:
        if self.live.conditions is not None and conditions is not None:
            await self.live.conditions.for_all(conditions, [tab.page for tab in self.live.tabs])

    async def set_conditions(self, conditions: Conditions) -> None:
        """What holds in the pages from here on. Raises ResourceFailed, RuntimeDied."""
        await self._guarded(self._set(conditions))

    async def content(self) -> Stored:
        """The content now, or that of the moment of ``hold``."""
        return self._held if self._held is not None else await self._guarded(capture(self.live))

    async def mark(self) -> str:
        """Digest of the content; while held, of what can still change: the cookies."""
        held = self._held
        if held is None:
            return digest_of((await self.content()).profile)
        cookies = await self._guarded(read_cookies(self.live))
        return digest_of(msgspec.structs.replace(held.profile, cookies=cookies))

    async def hold(self) -> None:
        """Wait for what the pages have asked for, take the content and stop the scripts. Idempotent."""
        if self._held is None:
            try:
                await self._guarded(self._hold())
            except BaseException:
                await self.go_on()
                raise

    async def _hold(self) -> None:
        await self.live.quiet(0, QUIET_SECONDS_MAX)
        self._held = await capture(self.live)
        self._paused = Paused(self.live)
        await self._paused.begin()

    async def go_on(self) -> None:
        """Undo ``hold``. Idempotent."""
        paused, self._paused, self._held = self._paused, None, None
        if paused is not None:
            await paused.end()

    async def act(self, action: AnyAction, *, settle_seconds_max: float, screenshot: bool) -> Look:
        """Act, come to rest, look. Raises ActionFailed, InvalidAction, RuntimeDied."""

        async def work() -> Look:
            told = await perform(self.live, action, settle_seconds_max)
            return msgspec.structs.replace(await look(self.live, screenshot=screenshot), value=told)

        return await self._guarded(work())

    async def look(self, *, screenshot: bool) -> Look:
        """See the active tab. Raises RuntimeDied."""
        return await self._guarded(look(self.live, screenshot=screenshot))

    async def answers(self) -> None:
        """Return when the active page's script engine answers. Raises ResourceFailed, RuntimeDied.

        While it is held it can't, and did just before: a store that the page's server needs is being replaced.
        """
        if self._held is not None:
            return

        async def ask() -> None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    await twice(lambda: self.live.active.page.evaluate("() => document.readyState"))
            except TimeoutError:
                raise ResourceFailed("it is busy", resource=self._resource) from None

        await self._guarded(ask())

    async def page(self) -> Page:
        """The active tab's page."""
        self._alive()
        self._since = self.live.sequence
        return self.live.active.page

    # What a lent page needs besides (see :mod:`raw`).

    def front(self) -> Page:
        """The active tab's page, as things stand."""
        return self.live.active.page

    def show(self, page: Page) -> None:
        """A page was brought to front: its tab is the active one."""
        self.live.show(page)

    async def rest(self, seconds_max: float) -> None:
        """Wait for what the pages have asked for since the page was given out. Raises RuntimeDied."""
        await self._guarded(settle(self.live, self.live.active, self._since, seconds_max))

    async def close(self) -> None:
        """Close the context. No unload handler runs and no beacon is sent. Idempotent."""
        self._held = self._paused = None
        await self.live.close()

    def died(self, error: PlaywrightError | None = None) -> RuntimeDied:
        """The error to raise when the context is broken."""
        return RuntimeDied(
            f"{DIED}: {_line(error)}" if error else DIED,
            hint="Use the environment again: it goes on from its last published generation, later actions are lost",
            resource=self._resource,
        )

    @property
    def broken(self) -> bool:
        """Whether the context will never answer again."""
        return self.live.broken

    def _alive(self) -> None:
        if self.broken:
            raise self.died()

    async def _guarded(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            self._alive()
            await asyncio.wait((task, self.live.death), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.died()
            return task.result()
        except PlaywrightError as error:
            if self.live.broken:
                raise self.died(error) from error
            raise ResourceFailed(_line(error), resource=self._resource) from error
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            if task.done() and not task.cancelled():
                task.exception()


def _line(error: PlaywrightError) -> str:
    return error.message.splitlines()[0]
