"""Processes and directories of a server that was killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

END_S_MAX = 10.0
_POLL_S = 0.005
_PROC = Path("/proc")
_SEGMENT_LINE = 6  # of postmaster.pid: key and id
_IPC_RMID = 0
_STATE_AT = 16  # of the control file, after the system identifier and the versions of its format and of the catalogs
_SHUT_DOWN = 1


def processes_in(*directories: Path) -> Iterator[int]:
    """Every process that works in a data directory, as all of a server's do, whatever became of their parent.

    Told by device and inode, since in a mount namespace of their own the path is another.
    """
    wanted = set()
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            status = directory.stat()
            wanted.add((status.st_dev, status.st_ino))
    if not wanted:
        return
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # gone, or another user's
            found = (entry / "cwd").stat()
            if (found.st_dev, found.st_ino) in wanted and _is_server(entry):
                yield int(entry.name)


def _is_server(entry: Path) -> bool:
    return (entry / "comm").read_text().strip() == "postgres"


def end_processes_in(*directories: Path) -> None:
    """Kill what works in these data directories and wait until it is gone."""
    deadline = time.monotonic() + END_S_MAX
    while alive := [pid for pid in processes_in(*directories) if not _is_zombie(pid)]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return  # the server will refuse to start beside them, and say so
        time.sleep(_POLL_S)


def is_shut_down(data: Path) -> bool:
    """Whether a data directory is as a server leaves it that ended in order: it may be copied as it is."""
    with (data / "global" / "pg_control").open("rb") as file:
        control = file.read(_STATE_AT + 4)
    return int.from_bytes(control[_STATE_AT:], sys.byteorder) == _SHUT_DOWN


def remove_shared_memory(data: Path) -> None:
    """Remove the segment of a server that was killed; the next start in its directory would, and there may be none."""
    try:
        key, segment = map(int, (data / "postmaster.pid").read_text().splitlines()[_SEGMENT_LINE].split())
    except (OSError, IndexError, ValueError):
        return
    libc = ctypes.CDLL(None)
    if libc.shmget(key, 0, 0) == segment:
        libc.shmctl(segment, _IPC_RMID, None)


def _is_zombie(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
