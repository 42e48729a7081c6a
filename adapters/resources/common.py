"""What the file-backed resources share: blocking work in threads, operating-system errors told as ours."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple, Unpack

import anyio.from_thread
import anyio.to_thread

from statefork.engine.errors import ResourceFailed

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


async def in_thread(work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """Run blocking work in a worker thread and wait for its real end, also when cancelled.

    So whatever the work made is either returned or removed by itself; long work calls ``pulse`` and ends soon.
    """
    return await anyio.to_thread.run_sync(work, *arguments)


def pulse() -> None:
    """In a worker thread: raise if the task that waits for it was cancelled."""
    anyio.from_thread.check_cancelled()


@contextmanager
def failures_told(resource: str, doing: str, **facts: str | int | None) -> Iterator[None]:
    """Turn an operating-system error into ResourceFailed, saying what was being done and what to do now."""
    try:
        yield
    except OSError as error:
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = (
                "The disk of the state directory is full. Free space (statefork gc), or let its store grow (statefork "
                "store resize), then try again; nothing was lost"
            )
        elif error.errno == errno.EIO:
            hint = "The disk fails, or the store's file system has shut down: see `statefork store status` and `dmesg`"
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            hint = "Too many open files: raise the limit (ulimit -n)"
        elif error.errno == errno.EFBIG:
            hint = "Files may not grow so large here: raise the limit (ulimit -f), then try again; nothing was lost"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = (
                "The engine's user may not write there: give it back the right (owner, mode, a disk mounted "
                "read-only, chattr), then try again; nothing was lost"
            )
        where = f" ({error.filename})" if error.filename else ""
        raise ResourceFailed(
            f"{resource}: {doing} failed: {error.strerror or error}{where}",
            hint=hint,
            resource=resource,
            errno=error.errno,
            **facts,
        ) from error
