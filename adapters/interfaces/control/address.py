"""Where the control socket lies, and how to name it when its path is longer than a socket address may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_NAME = "control.sock"
SOCKET_PATH_BYTES_MAX = 107


def socket_path(state: Path, name: str = SOCKET_NAME) -> Path:
    """The control socket of a state directory, or another one of that name."""
    return state.absolute() / name


@contextmanager
def socket_address(state: Path, name: str = SOCKET_NAME) -> Iterator[str]:
    """A name of the socket that the kernel accepts, valid while the context is open.

    A long path is taken through the directory's file descriptor, which is as good a directory as any other.
    """
    path = str(socket_path(state, name))
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)
