"""Calling others' code (policies, judges), whether it is asynchronous or blocks, and telling what it raised."""

from __future__ import annotations

import inspect
import sysconfig
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

_OWN = tuple(f"statefork.{part}." for part in ("adapters", "engine", "journal", "replay"))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Exited(Exception):
    """Others' code raised what would end the program (``sys.exit()``) or a coroutine; it is the cause."""


async def asked(function: Callable[..., Any], *arguments: Any) -> Any:
    """Its answer, whether it is asynchronous or blocks. Raises what it raises, and Exited."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 -- whether that is a coroutine function is the question
        return await _awaited(function(*arguments))
    answer = await beside(partial(function, *arguments))
    return await _awaited(answer) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    try:
        return await answer
    except (KeyboardInterrupt, anyio.get_cancelled_exc_class()):
        raise  # our own
    except BaseException as error:  # noqa: BLE001 -- it is raised as what a task may raise
        raise harmless(error)  # noqa: B904 -- it has its cause, or is the error itself


async def beside(work: Callable[[], Any]) -> Any:
    """What blocking work gives, in a thread that nobody waits for at the end: a model may take long to answer."""
    token, ended = current_token(), anyio.Event()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            done.set_exception(harmless(error))
        with suppress(anyio.RunFinishedError):
            anyio.from_thread.run_sync(ended.set, token=token)

    threading.Thread(target=copy_context().run, args=(run,), name="policy", daemon=True).start()
    await ended.wait()
    return done.result()


def harmless(error: BaseException) -> Exception:
    """What may be raised through tasks: the error itself; or, where it would end more than the caller, Exited."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration | CancelledError):
        return error
    exited = Exited(str(error))
    exited.__cause__ = error
    return exited


def raised(error: Exception) -> str:
    """What others' code raised, in one line: its kind, its message, and the line of their code where it came about."""
    meant = error.__cause__ if isinstance(error, Exited) or isinstance(error.__cause__, StopIteration) else None
    cause: BaseException = meant or error
    message = " ".join(str(cause).split())
    place = _place(cause)
    return type(cause).__name__ + (f": {message}" if message else "") + (f" ({place})" if place else "")


def _place(error: BaseException) -> str:
    """The innermost line that belongs to no installed package."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith(_OWN)
        and not frame.f_code.co_filename.startswith((*_INSTALLED, "<"))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}:{error.lineno}")
    if not lines:
        return ""
    file, _, number = lines[-1].rpartition(":")
    path = Path(file)
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{number}"
