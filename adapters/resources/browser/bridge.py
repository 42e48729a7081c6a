"""An asyncio loop in one thread, and the way to it from trio or asyncio.

Playwright speaks asyncio only, the engine runs on trio or on asyncio. Everything that touches Playwright runs on the
loop of an :class:`AsyncioThread`; callers await it through :meth:`AsyncioThread.call`, which costs two thread hops
(about 0.2 ms) and no thread per call.

A cancelled caller cancels the asyncio task and then waits, shielded, until that task has really ended: when ``call``
returns or raises, nothing of it runs on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio import CancelScope
from anyio.lowlevel import current_token

from statefork.engine.errors import RuntimeDied

T = TypeVar("T")
P = ParamSpec("P")

STOP_SECONDS_MAX = 30.0


class _Loop(asyncio.SelectorEventLoop):
    """Children get a session of their own: Ctrl-C at the terminal must reach the engine only, which parks first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.children: list[int] = []
        self._environment = environment
        self.set_exception_handler(_report)

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["start_new_session"] = True
        kwargs["env"] = {**(kwargs.get("env") or os.environ), **self._environment}
        transport, protocol = await super().subprocess_exec(*args, **kwargs)
        self.children.append(transport.get_pid())
        return transport, protocol


def on_bridge() -> bool:
    """Whether the calling thread is one of these: a call that blocks it would stop what it waits for."""
    try:
        return isinstance(asyncio.get_running_loop(), _Loop)
    except RuntimeError:
        return False


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Playwright leaves this one unread when its driver dies; whoever used the driver has been told.
    if "reading from the driver" not in str(context.get("exception", "")):
        loop.default_exception_handler(context)


class _Caller:
    """Wakes one waiting caller, on whichever backend it runs, from the loop's thread."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        token = current_token().native_token
        if isinstance(token, asyncio.AbstractEventLoop):
            self._run: Callable[..., Any] = token.call_soon_threadsafe
        else:
            self._run = token.run_sync_soon  # type: ignore[attr-defined]  # a TrioToken; trio's types are not imported here

    def wake(self) -> None:
        # The caller's own loop is gone only when its run was torn down under it; then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._run(self.done.set)


class AsyncioThread:
    """One thread with an asyncio loop. ``start`` and ``stop`` are idempotent; ``stop`` joins the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: _Loop | None = None
        self._ended: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether calls are possible."""
        return self._loop is not None

    @property
    def children(self) -> tuple[int, ...]:
        """Ids of the processes that were started on the loop (the Playwright driver)."""
        return tuple(self._loop.children) if self._loop else ()

    async def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the thread; returns when its loop runs.

        ``environment`` is added to that of the processes that are started on the loop.
        """
        if self._loop is not None:
            return
        caller = _Caller()

        async def keep() -> None:
            self._ended = asyncio.Event()
            self._loop = loop
            caller.wake()
            await self._ended.wait()

        loop = _Loop(environment or {})

        def main() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(keep())

        self._thread = threading.Thread(target=main, name=self._name, daemon=True)
        self._thread.start()
        with CancelScope(shield=True):
            await caller.done.wait()

    async def stop(self) -> None:
        """Cancel what still runs on the loop, end it and join the thread."""
        loop, thread, ended = self._loop, self._thread, self._ended
        if loop is None or thread is None or ended is None:
            return
        self._loop = self._thread = self._ended = None
        loop.call_soon_threadsafe(ended.set)
        with CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.join, STOP_SECONDS_MAX)

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop and return its result.

        Raises whatever it raises, and RuntimeDied when the loop has ended. On cancellation the coroutine is cancelled
        and awaited to its end before the cancellation goes on; what it returned meanwhile is dropped, so a coroutine
        that makes something must leave it where it can be found.
        """
        loop = self._loop
        if loop is None:
            raise RuntimeDied("the browser's thread is not running", hint="Start the resource first")
        caller = _Caller()
        tasks: list[asyncio.Task[T]] = []

        def finish(_: asyncio.Task[T]) -> None:
            caller.wake()

        def begin() -> None:
            task = loop.create_task(function(*args, **kwargs))
            tasks.append(task)
            task.add_done_callback(finish)

        def give_up() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        try:
            await caller.done.wait()
        except BaseException:
            # Nothing may be awaited twice here: the first cancellation asks, the shield waits for the true end.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(give_up)
                with CancelScope(shield=True):
                    await caller.done.wait()
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # read, or asyncio would log it as never retrieved
            raise
        task = tasks[0]
        if task.cancelled():
            raise RuntimeDied("the browser's thread ended under a call")
        return task.result()

    def call_sync(self, function: Callable[[], T]) -> T:
        """Run a short synchronous function on the loop's thread and wait for it, blocking: never for anything slow."""
        loop = self._loop
        if loop is None:
            raise RuntimeDied("the browser's thread is not running")
        if threading.current_thread() is self._thread:
            return function()

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), loop).result()
