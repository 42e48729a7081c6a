"""Ordinary threads, and a trio loop in a thread of its own: calls that block, and that Ctrl-C cancels.

Every call is a task on the loop. A thread that is interrupted while it waits cancels its task and waits until that has
really ended, so that nothing runs on behind its back. anyio's blocking portal would not do: there an interrupted call
runs on, and an interrupt while the portal starts waits for ever.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
import trio

from statefork.adapters.resources.browser.bridge import on_bridge
from statefork.engine.errors import EngineClosed, StateforkError
from statefork.engine.leases import Lease, current_lease, holding

T = TypeVar("T")
R = TypeVar("R")

Gone = Callable[[], StateforkError]
"""The error for those who call when it is over."""


Offer = Callable[[T], Awaitable[Any]]
"""Lends a thing to the thread; returns what comes back."""


class Call(Generic[T]):
    """One task on the loop, and the outcome that a thread waits for. All methods run on the loop."""

    def __init__(self, calls: Calls, work: Callable[[], Awaitable[T]]) -> None:
        self.outcome: Future[T] = Future()
        self._calls = calls
        self._work = work
        self._scope = trio.CancelScope()
        self._begun = False

    def begin(self) -> None:
        """Start the task; where the calls are closed, that is the outcome."""
        if self.outcome.done():
            return  # given up before it began
        if self._calls.closed:
            self.outcome.set_exception(self._calls.gone())
        else:
            self._begun = True
            self._calls.nursery.start_soon(self._run)

    def give_up(self) -> None:
        """Cancel the task; the outcome comes when it has ended."""
        self._scope.cancel()
        if not self._begun and not self.outcome.done():
            self.outcome.set_exception(self._calls.gone())

    async def _run(self) -> None:
        try:
            with self._scope:
                result = await self._work()
        except BaseException as error:
            if _is_cancelled(error):
                self.outcome.set_exception(self._calls.gone())
                raise
            self.outcome.set_exception(error)  # and so it is raised in the thread that waits for it
        else:
            if self._scope.cancelled_caught:
                self.outcome.set_exception(self._calls.gone())
            else:
                self.outcome.set_result(result)


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is nothing but a cancellation, which nurseries on its way may have put into groups."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


class Calls:
    """Takes calls from any thread until it is closed. Made on the loop; the tasks run in ``nursery``."""

    def __init__(self, nursery: trio.Nursery, gone: Gone) -> None:
        self.nursery = nursery
        self.gone = gone
        self.closed = False
        self.lent: set[trio.Event] = set()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._pid = os.getpid()

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function on the loop, in the caller's context, without waiting. Raises EngineClosed."""
        self._check_caller()
        try:
            self._token.run_sync_soon(contextvars.copy_context().run, function)
        except trio.RunFinishedError:
            raise closed() from None

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await on the loop, and return or raise what comes of it. An interrupt cancels it and waits for its end."""
        call = Call(self, work)
        try:
            self.soon(call.begin)
            return call.outcome.result()
        except BaseException:
            self.settle(call.outcome, call.give_up)
            raise

    def settle(self, outcome: Future[Any], give_up: Callable[[], None]) -> None:
        """After an interrupt: cancel what is under way, and wait for its end."""
        if not outcome.done():
            with suppress(EngineClosed):  # then it never began, or has ended
                self.soon(give_up)
                outcome.exception()

    def run(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop, where nothing changes meanwhile."""

        async def work() -> T:
            return function()

        return self.call(work)

    def check(self) -> None:
        """Raises what a call would raise here and now."""
        self._check_caller()
        if self.closed:
            raise self.gone()

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosed("this engine was opened by another process, from which this one was forked")
        if threading.get_ident() == self._thread or on_bridge():
            raise RuntimeError("a blocking call here would wait for itself: this thread is one of the engine's own")

    def close(self) -> None:
        """On the loop: refuse calls, cancel those that run, and wait for no thread that was lent something."""
        self.closed = True
        self.nursery.cancel_scope.cancel()
        for event in self.lent:
            event.set()


def closed() -> EngineClosed:
    """The error of an engine that is closed."""
    return EngineClosed("the engine is closed", hint="Open it again")


class Lent(Generic[T, R]):
    """Something that a task on the loop holds for a thread, as a context manager: a page, an evaluation.

    ``hold`` awaits the function that it is given, with the thing, for as long as the thread's block runs; it gets back
    ``answer``, or the block's exception is raised in it. What it returns is ``result``. ``calls`` run within ``hold``,
    and are cancelled with it. The block's thread holds the lease that ``hold`` held when it lent the thing.

    ``join``: when ``hold`` is cancelled, it waits for the block, which may still be using what it was lent.
    """

    value: T
    calls: Calls
    result: R
    answer: Any = None

    def __init__(self, calls: Calls, hold: Callable[[Offer[T]], Awaitable[R]], gone: Gone, *, join: bool) -> None:
        self._outer = calls
        self._gone = gone
        self._join = join
        self._given: Future[tuple[Calls, T, Lease | None]] = Future()
        self._back = trio.Event()
        self._error: Exception | None = None
        self._call = Call(calls, lambda: hold(self._offer))
        self._call.outcome.add_done_callback(self._ended)

    async def _offer(self, value: T) -> Any:
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, self._gone)
            self._outer.lent.add(self._back)
            self._given.set_result((calls, value, current_lease()))
            try:
                await self._back.wait()
            except trio.Cancelled:
                calls.closed = True
                with trio.CancelScope(shield=self._join):
                    await self._back.wait()
                raise
            finally:
                self._outer.lent.discard(self._back)
                calls.close()
        if self._error is not None:
            raise self._error
        return self.answer

    def _ended(self, outcome: Future[R]) -> None:
        if not self._given.done():
            self._given.set_exception(outcome.exception() or self._gone())

    def _give_up(self) -> None:
        self._call.give_up()
        self._back.set()

    def __enter__(self) -> Lent[T, R]:
        try:
            self._outer.soon(self._call.begin)
            self.calls, self.value, lease = self._given.result()
            self._holding = holding(lease)
            self._holding.__enter__()
        except BaseException:
            self._outer.settle(self._call.outcome, self._give_up)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holding.__exit__(None, None, None)
        interrupted = error is not None and not isinstance(error, Exception)
        if isinstance(error, Exception):
            self._error = error
        outcome = self._call.outcome
        try:
            with suppress(EngineClosed):  # then it has ended already
                self._outer.soon(self._give_up if interrupted else self._back.set)
            self.result = outcome.result()
        except BaseException as raised:
            self._outer.settle(outcome, self._give_up)
            if raised is error:
                error.__traceback__ = trace  # where it was raised, without the way through the loop
            elif not interrupted:
                raise


class LoopThread(Generic[T]):
    """A trio loop in a daemon thread that holds one thing open."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self._opening = opening
        self._pid = os.getpid()
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._opened: Future[tuple[Calls, T]] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def open(self) -> tuple[Calls, T]:
        """Start the loop and open the thing. An interrupt cancels the opening and waits for its end."""
        try:
            self._thread.start()
            return self._opened.result()
        except BaseException:
            if self._thread.ident is not None:  # else it could not be started
                self._soon(self._scope.cancel)
                self._ended.exception()
            raise

    def close(self) -> None:
        """Close the thing and end the loop; idempotent.

        Closing goes on through one interrupt, which is raised afterwards; a second one is raised at once.
        """
        if os.getpid() != self._pid or self._thread.ident is None:
            return  # a forked process has no such thread, and the thing is not its own; or it was never started
        try:
            self._soon(self._leave.set)
            self._ended.exception()
        except BaseException:
            self._soon(self._leave.set)
            self._ended.exception()
            raise
        self._thread.join()
        if self._opened.exception() is None:  # else ``open`` has raised it
            self._ended.result()

    def _soon(self, function: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.result().run_sync_soon(function)

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            anyio.run(self._serve, backend="trio")
        except BaseException as raised:  # noqa: BLE001 -- it is raised in the thread that opens or closes
            error = raised
        for future in (self._token, self._opened):
            if not future.done():
                future.set_exception(error or closed())
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._token.set_result(trio.lowlevel.current_trio_token())
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, closed)
            try:
                with self._scope:
                    async with self._opening() as value:
                        self._opened.set_result((calls, value))
                        await self._leave.wait()
                        calls.closed = True
            except Exception as raised:  # noqa: BLE001 -- raised below: out here it would come as a group of one
                failed = raised
            calls.close()
        if failed is not None:
            raise failed
