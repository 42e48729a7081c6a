"""The event loop of an ASGI application: one thread, which belongs to nobody; each task belongs to its request.

The lifespan runs once, for the process, and without an environment: no environment is there when the server starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from statefork.adapters.resources.web import inherit
from statefork.adapters.resources.web.bound import BindingEnded, Bound, NoEnvironment, Work

AsgiApplication = Callable[[Any, Any, Any], Awaitable[None]]

ASGI = {"version": "3.0", "spec_version": "2.3"}
_START_S = 300.0  # the engine gives up before
_ANSWER_S = 10.0
_STOP_S = 2.0
_log = logging.getLogger("statefork.web")


class Errand:
    """All tasks that a request has started: work of its binding until the last has ended, and ended by a cut.

    It stands among the binding's sessions (see bound.Session), so that a cut reaches it.
    """

    def __init__(self, bound: Bound, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._bound = bound
        self._name = name
        self._loop = loop
        self._lock = threading.Lock()
        self._live: set[asyncio.Future[Any]] = set()
        self._work: Work | None = None
        self._ended = False
        bound.adopt(self)

    def add(self, task: asyncio.Future[Any]) -> None:
        """A task of it has been made."""
        with self._lock:
            self._live.add(task)
            task.add_done_callback(self._done)
            if self._ended:
                self._loop.call_soon(task.cancel)

    def _done(self, task: asyncio.Future[Any]) -> None:
        with self._lock:
            self._live.discard(task)
            work, self._work = (None, self._work) if self._live else (self._work, None)
        if work is not None:
            self._bound.end(work)

    def outlive(self) -> None:
        """The answer has been sent: what runs on is counted for itself."""
        with self._lock:
            if not self._live or self._ended:
                return
            try:
                self._work = self._bound.begin("job", f"what {self._name} left to do")
            except BindingEnded:
                return  # the cut has reached its tasks, or will

    def is_open(self) -> bool:
        """It is no connection."""
        return False

    def busy(self) -> str:
        """The drain waits for it, nobody else need."""
        return ""

    def close_now(self) -> None:
        """Once its binding is cut off: cancel its tasks."""
        if self._bound.gate == "cut":
            self.interrupt()

    def interrupt(self) -> None:
        """Cancel its tasks, and those that are yet to be made."""
        with self._lock:
            self._ended = True
            live = tuple(self._live)
        for task in live:
            self._loop.call_soon_threadsafe(task.cancel)


ERRAND: ContextVar[Errand | None] = ContextVar("statefork_errand", default=None)


def counted(loop: asyncio.AbstractEventLoop, coroutine: Any, /, **given: Any) -> Any:
    """The loop's task factory: a task belongs to the errand in whose context it runs."""
    context: contextvars.Context | None = given.get("context")
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **given)
    errand = ERRAND.get() if context is None else context.get(ERRAND)
    if errand is not None:
        errand.add(task)
    return task


class Loop:
    """The loop, and the application's lifespan on it."""

    def __init__(self, application: AsgiApplication) -> None:
        self._application = application
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(counted)
        self.state: dict[str, Any] = {}
        self._started: Future[None] = Future()
        self._stop = asyncio.Event()
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event loop", daemon=True)

    def start(self) -> None:
        """Run the lifespan up to "started". Raises ValueError with what the application says."""
        from anyio._backends._asyncio import WorkerThread

        inherit.NOBODYS.add(WorkerThread)  # its jobs are awaited by tasks, and bring their contexts
        self._thread.start()
        self._started.result(_START_S)

    def answer(self) -> None:
        """Raise TimeoutError when something keeps the loop from running."""
        passed: Future[None] = Future()
        self.loop.call_soon_threadsafe(passed.set_result, None, context=contextvars.Context())
        try:
            passed.result(_ANSWER_S)
        except TimeoutError:
            raise TimeoutError(f"the application's event loop did not run for {_ANSWER_S:g} s") from None

    def stop(self) -> None:
        """Let the lifespan end, and the loop."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        # a task that lives as long as the loop: threads that anyio starts are kept with it
        self.loop.run_until_complete(self._live())

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": ASGI, "state": self.state}
        try:
            await self._application(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - by the specification: an application without a lifespan
            if isinstance(error, NoEnvironment):
                self._refuse(str(error))
            _log.info("no lifespan: %r", error)
        if not self._started.done():
            self._started.set_result(None)
        await self._stop.wait()

    async def _receive(self) -> dict[str, Any]:
        if not self._told.is_set():
            self._told.set()
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "lifespan.startup.complete" and not self._started.done():
            self._started.set_result(None)
        elif message["type"] == "lifespan.startup.failed":
            self._refuse(str(message.get("message", "")))

    def _refuse(self, said: str) -> None:
        if not self._started.done():
            self._started.set_exception(ValueError(f"the application's lifespan failed to start: {said[-2000:]}"))
