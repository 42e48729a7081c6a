"""Bytes that files really take on a file system that shares extents.

What a file system says it has less is no measure of it: space that was freed comes back late (XFS), and others write.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from statefork.adapters.resources.reflink import extents_of

_BLOCK_BYTES = 512  # the unit of st_blocks
_CAN_NOT_TELL = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)


def allocated_bytes(folder: Path) -> int:
    """What all files below a folder take, each extent counted once, whoever shares it.

    Where the file system can't say where extents lie, none are shared, and each file's blocks count. What names and
    inodes take does not.
    """
    ends: list[tuple[int, int]] = []
    apart = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if path.is_file() and not path.is_symlink():
                apart += _of(path, ends)
    return apart + _union(ends)


def _of(path: Path, ends: list[tuple[int, int]]) -> int:
    """Adds the extents that have a place; the bytes of all others."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = list(extents_of(file))
    except OSError as error:
        if error.errno not in _CAN_NOT_TELL:
            raise
        return os.fstat(file).st_blocks * _BLOCK_BYTES
    finally:
        os.close(file)
    ends += [(one.place, one.place + one.length) for one in found if one.known]
    return sum(one.length for one in found if not one.known)


def _union(ends: list[tuple[int, int]]) -> int:
    total = reached = 0
    for begin, end in sorted(ends):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
