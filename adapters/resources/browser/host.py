"""The one resident Chromium: launched, watched, restarted. Lives on the asyncio thread.

Killed from outside, it is started again at once; contexts of the dead one answer with RuntimeDied, later ones work.
When the engine is killed, the Playwright driver sees the end of its input, closes Chromium and removes its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from statefork.adapters.resources.browser.chromium import NO_WEBRTC, is_headless_shell, launch_flags, unwanted_flags
from statefork.adapters.resources.browser.context import LiveContext
from statefork.adapters.resources.browser.ready import Reserve
from statefork.adapters.resources.browser.sifting import check, prepare
from statefork.adapters.resources.browser.watch import Watch
from statefork.engine.errors import RuntimeDied
from statefork.engine.masks import Selector

T = TypeVar("T")

LAUNCH_TRIES_MAX = 5
LAUNCH_TIMEOUT_MS = 60_000
CLOSE_SECONDS_MAX = 10.0


UNDO_SECONDS_MAX = 5.0
_undoing: set[asyncio.Task[None]] = set()  # asyncio itself holds its tasks weakly


async def made(work: Awaitable[T], undo: Callable[[T], Awaitable[Any]]) -> T:
    """Await the making of something to its end; when the caller was cancelled meanwhile, undo it and raise that.

    A browser that stands still may not end it for long: the caller then goes on, and the undoing follows by itself.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        undoing = asyncio.create_task(_undo(task, undo))
        _undoing.add(undoing)
        undoing.add_done_callback(_undoing.discard)
        await asyncio.wait({undoing}, timeout=UNDO_SECONDS_MAX)
        raise


async def _undo(task: asyncio.Future[T], undo: Callable[[T], Awaitable[Any]]) -> None:
    with contextlib.suppress(PlaywrightError):
        await undo(await task)


class BrowserHost:
    """Playwright's driver and one Chromium. All methods run on the asyncio thread."""

    def __init__(
        self,
        executable: Path,
        scratch: Path | None,
        spawned: Callable[[], tuple[int, ...]],
        selectors: tuple[Selector, ...] = (),
    ) -> None:
        self._executable = executable
        self._scratch = scratch  # where driver and browser keep temporary files, by the environment they were given
        self._spawned = spawned  # pids that the thread's loop has started, the driver's last
        self._selectors = selectors  # what is taken out of pages for a second look
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._starting: asyncio.Task[Browser] | None = None
        self._stopping = False
        self._contexts: weakref.WeakSet[LiveContext] = weakref.WeakSet()
        self._watch = Watch(self._lost)
        self.reserve = Reserve(self.new_context)
        self.launches = 0
        self.driver_pid = 0
        self.browser_pid = 0

    async def start(self) -> None:
        """Launch, unless it runs already. Raises ContractError for selectors that are none."""
        self._stopping = False
        browser = await self.ready()
        if self._selectors:
            await check(browser, self._selectors)

    async def ready(self) -> Browser:
        """The running browser; waits for a launch under way. Raises RuntimeDied when it can't be launched."""
        if self._stopping:
            raise RuntimeDied("the browser is being stopped")
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._launch())
        return await asyncio.shield(self._starting)

    async def _launch(self) -> Browser:
        problem: Exception | None = None
        for _ in range(LAUNCH_TRIES_MAX):
            await self._shut()
            if self._scratch is not None:
                self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._playwright = await async_playwright().start()
                self.driver_pid = self._spawned()[-1]
                if self._selectors:
                    await prepare(self._playwright)
                browser = await self._playwright.chromium.launch(
                    executable_path=self._executable,
                    args=launch_flags(self._executable),
                    ignore_default_args=unwanted_flags(),
                    handle_sigint=False,  # the engine parks its environments first
                    handle_sigterm=False,
                    handle_sighup=False,
                    timeout=LAUNCH_TIMEOUT_MS,
                )
            except PlaywrightError as error:
                problem = error
                continue
            self._browser = browser
            self.launches += 1
            self.browser_pid = self._find_browser_pid()
            browser.on("disconnected", self._died)
            self._watch.begin(self.driver_pid, *self._find_zygotes())
            return browser
        reason = str(problem).splitlines()[0] if problem else ""
        raise RuntimeDied(f"Chromium at {self._executable} can't be started: {reason}", path=str(self._executable))

    def _lost(self) -> None:
        """The driver has ended, of which Playwright tells nobody; or a zygote, without which no page begins."""
        if self._browser is None or self._stopping:
            return
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            os.kill(self.browser_pid or self._find_browser_pid(), signal.SIGKILL)
        self._died(self._browser)

    def _died(self, browser: Browser) -> None:
        if browser is not self._browser or self._stopping:
            return
        for live in tuple(self._contexts):
            live.die()
        self._browser = None
        self.browser_pid = 0
        self._starting = asyncio.create_task(self._launch())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _find_browser_pid(self) -> int:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.driver_pid).children()
            if children:
                return int(children[-1].pid)
        return 0

    def _find_zygotes(self) -> list[int]:
        with contextlib.suppress(psutil.Error):
            processes = psutil.Process(self.browser_pid).children(recursive=True) if self.browser_pid else []
            return [process.pid for process in processes if "--type=zygote" in process.cmdline()]
        return []

    def process_ids(self) -> tuple[int, ...]:
        """The driver and Chromium's whole tree; callable from any thread."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.driver_pid:
                driver = psutil.Process(self.driver_pid)
                return (driver.pid, *(child.pid for child in driver.children(recursive=True)))
        return ()

    async def new_context(self, **options: Any) -> LiveContext:
        """A context that a cancellation can't orphan, and that learns of the browser's end."""
        live = LiveContext(await self._new_context(options))
        self._contexts.add(live)
        return live

    async def _new_context(self, options: dict[str, Any]) -> BrowserContext:
        browser = await self.ready()
        try:
            return await made(self._make(browser, options), lambda context: context.close())
        except PlaywrightError as error:
            if "closed" not in error.message:
                raise
            # The browser or the driver has died and the news is still on its way.
            self._died(browser)
            return await made(self._make(await self.ready(), options), lambda context: context.close())

    async def _make(self, browser: Browser, options: dict[str, Any]) -> BrowserContext:
        context = await browser.new_context(**options)
        if not is_headless_shell(self._executable):
            await context.add_init_script(NO_WEBRTC)
        return context

    async def _shut(self) -> None:
        self._watch.end()
        browser, playwright = self._browser, self._playwright
        self._browser = self._playwright = None
        self.browser_pid = self.driver_pid = 0
        with contextlib.suppress(PlaywrightError, TimeoutError):
            if browser is not None and browser.is_connected():
                await asyncio.wait_for(browser.close(), CLOSE_SECONDS_MAX)
        with contextlib.suppress(PlaywrightError, TimeoutError):
            if playwright is not None:
                await asyncio.wait_for(playwright.stop(), CLOSE_SECONDS_MAX)
        if self._scratch is not None:
            # Whatever a killed driver, of this engine or of an earlier one, could not remove itself.
            await _removed(self._scratch)

    async def stop(self) -> None:
        """Close Chromium and the driver. Idempotent."""
        self._stopping = True
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await self.reserve.close()
        await self._shut()


async def _removed(folder: Path) -> None:
    """In a thread of its own: asyncio's are shut before what closes at the program's end."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def remove() -> None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                loop.call_soon_threadsafe(gone.set)

    threading.Thread(target=remove, name="browser scratch", daemon=True).start()
    await gone.wait()
