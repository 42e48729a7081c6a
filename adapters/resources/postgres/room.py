"""Room on the disk of a server. PostgreSQL stops when it can't write its log or a checkpoint, and each copy needs one.

So nothing is copied where that could happen; a server that went away on a disk without room is told as just that; and
our own server has some room set aside, which it is given when it has stopped, so that it can begin again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from statefork.engine.errors import ResourceFailed

ROOM_BYTES_MIN = 32 << 20  # two segments of the log, or one and what a checkpoint writes
RESERVE_BYTES = 24 << 20  # less than that: with this much there is still no room for copies
_KEPT_FROM_BYTES = 96 << 20
_MIB = 1 << 20
HINT = "Free space (statefork gc), or let the store grow (statefork store resize), then try again; nothing was lost"


def free_bytes(directory: Path | None) -> int | None:
    """What may still be written there; None where nobody can look."""
    if directory is None:
        return None
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def is_short(directory: Path | None) -> bool:
    """Whether a server that keeps its data there could stop for want of room."""
    free = free_bytes(directory)
    return free is not None and free < ROOM_BYTES_MIN


def full(resource: str, said: str) -> ResourceFailed:
    """The error for a full disk."""
    return ResourceFailed(
        f"{resource}: the disk of the database server is full: {said}", hint=HINT, resource=resource, limit="disk"
    )


def require_room(resource: str, directory: Path | None) -> None:
    """Raise ResourceFailed before a copy is begun that could end the server."""
    free = free_bytes(directory)
    if free is not None and free < ROOM_BYTES_MIN:
        raise full(resource, f"{free // _MIB} MiB are free, and {ROOM_BYTES_MIN // _MIB} are needed to copy a database")


class Reserve:
    """A file beside our own server's data that nobody reads: its blocks are set aside while there is room for them."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._path = data.with_name("reserve")

    def keep(self) -> None:
        """Have it, where there is room. Idempotent."""
        if self._path.exists() or (free_bytes(self._data) or 0) < _KEPT_FROM_BYTES:
            return
        partial = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError):  # a file system that can't: then it is done without
            with partial.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            partial.replace(self._path)

    def lend(self) -> None:
        """Where there is no other room, this is there to be used: to begin again, or to remove something."""
        if is_short(self._data):
            self._path.unlink(missing_ok=True)
