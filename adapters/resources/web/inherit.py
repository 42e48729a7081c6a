"""Inside the server process: what a request starts belongs to the request's environment, and is counted.

Python threads begin with an empty context, so without this a thread would be refused by every store, and a drain
would not know of it. Threads of a pool belong to nobody: only each job carries the environment of who submitted it.
A worker thread that serves all environments must therefore be started at boot; one that a request starts is that
request's, and a drain names it.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

from statefork.adapters.resources.web.bound import CURRENT, Bound, NoEnvironment, Work

NOBODYS: set[type[threading.Thread]] = set()
"""Kinds of threads that serve whoever comes, and whose jobs bring their contexts: they belong to nobody."""


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def carry(bound: Bound, work: Work, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, run in the caller's context, and counted out when it ends."""
    context = contextvars.copy_context()

    def carried(*args: Any, **kwargs: Any) -> Any:
        try:
            return context.run(function, *args, **kwargs)
        finally:
            for session in bound.local.__dict__.get("sessions", ()):
                session.close_now()
            bound.end(work)

    return carried


def _start(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def start(self: threading.Thread) -> None:
        bound = CURRENT.get()
        if bound is None or type(self) in NOBODYS:
            return original(self)
        work = bound.begin("thread", self.name)
        self.run = carry(bound, work, self.run)  # type: ignore[method-assign]  # per instance, as `run` is looked up on it
        try:
            return original(self)
        except BaseException:
            bound.end(work)
            raise

    return start


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        bound = CURRENT.get()
        if bound is None:
            return original(self, function, *args, **kwargs)
        work = bound.begin("job", _name(function))
        carried = carry(bound, work, function)
        try:
            # in an empty context, so that a pool thread which is started now does not become this environment's
            future = contextvars.Context().run(original, self, carried, *args, **kwargs)
        except BaseException:
            bound.end(work)
            raise
        future.add_done_callback(lambda done: bound.end(work) if done.cancelled() else None)
        return future

    return submit


def _fork(original: Callable[[], int]) -> Callable[[], int]:
    def fork() -> int:
        if CURRENT.get() is not None:
            raise NoEnvironment("a forked process can't be counted or cut off: use a thread, or a subprocess")
        return original()

    return fork


def install() -> None:
    """Patch thread start, job submission and fork. Called once per process, before the first request."""
    threading.Thread.start = _start(threading.Thread.start)  # type: ignore[assignment,method-assign]  # a patch
    pool = concurrent.futures.ThreadPoolExecutor
    pool.submit = _submit(pool.submit)  # type: ignore[method-assign]  # a patch
    os.fork = _fork(os.fork)
