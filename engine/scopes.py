"""What the two event loops do differently: scopes for the hot path, and tasks that nobody has to wait for.

On Trio a lease's scope is Trio's own, a third cheaper than AnyIO's around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from types import TracebackType
from typing import Any, Protocol

import anyio
import sniffio
import trio

_tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no hold of them


class Scope(Protocol):
    """What a lease needs of a cancel scope."""

    def cancel(self) -> None:
        """Cancel what runs in it."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


def scope_maker() -> Callable[[], Scope]:
    """What makes scopes in the running event loop. Outside of one: what works in all of them."""
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return anyio.CancelScope
    return trio.CancelScope if library == "trio" else anyio.CancelScope


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run it in a task of nobody's, in the caller's context; at its end the event loop cancels it and waits.

    It must raise nothing but its cancellation.
    """
    if sniffio.current_async_library() == "trio":
        trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(work(), name=name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
