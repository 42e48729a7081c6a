"""Where the control socket lies, and how to name it when its path is longer than a socket address may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_NAME = "control.sock"
SOCKET_PATH_BYTES_MAX = 107


def socket_path(state: Path) -> Path:
    """The control socket of a state directory."""
    return state.absolute() / SOCKET_NAME


@contextmanager
def socket_address(state: Path) -> Iterator[str]:
    """A name of the socket that the kernel accepts, valid while the context is open.

    A long path is taken through the directory's file descriptor, which is as good a directory as any other.
    """
    path = str(socket_path(state))
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)
