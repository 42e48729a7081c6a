"""Accepting connections for as long as a listener is open, whatever becomes of one of them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc
from anyio.abc import SocketAttribute

PAUSE_S = 0.1
"""Between two tries while the process may not open one more file."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ITS_OWN = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR}
)  # of the one connection, which is gone
_log = logging.getLogger(__name__)


async def accept_each(
    listener: anyio.abc.SocketListener,
    serve: Callable[[anyio.abc.SocketStream], Coroutine[Any, Any, None]],
    tasks: anyio.abc.TaskGroup,
) -> None:
    """Serve each connection in a task of its own, until cancelled.

    When the process has no descriptor left, clients wait in the listener's queue until it has one again: the engine
    must not end because there are too many of them.
    """
    told = False
    ours = listener.extra(SocketAttribute.raw_socket)
    while True:
        try:
            # asyncio fails where its own wait for a client is cancelled in the moment in which one comes: so it never
            # waits, and who comes then stays in the queue.
            await anyio.wait_readable(ours)
            stream = await listener.accept()
        except (OSError, anyio.BrokenResourceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            number = cause.errno if isinstance(cause, OSError) else None
            if number in _FULL:
                if not told:
                    _log.warning("new connections have to wait: %s; `ulimit -n` says how many there may be", cause)
                told = True
                await anyio.sleep(PAUSE_S)
            elif number not in _ITS_OWN:
                raise
        else:
            told = False
            tasks.start_soon(serve, stream)
