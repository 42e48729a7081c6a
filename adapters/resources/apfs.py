"""Clones on macOS: APFS shares the blocks of a file by ``fclonefileat``, which makes the new file itself.

Written from Apple's documentation and tried with a stand-in for the call alone: **untested on macOS**, where nobody has
run statefork yet. There is no silent copy to look out for: the call fails where blocks can't be shared (ENOTSUP).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import sys
from collections.abc import Callable

_F_GETPATH = 50
_PATH_BYTES = 1024
_AT_FDCWD = -2

Call = Callable[[int, str], None]
PathOf = Callable[[int], str]


def is_macos() -> bool:
    """Whether clones are made in this way here."""
    return sys.platform == "darwin"


def clone_onto(source: int, target: int) -> None:
    """Make the open, empty file ``target`` a clone of the open file ``source``. Raises OSError.

    The clone is made beside the target and takes its name; then the descriptor is made to mean it. Mode and times are
    the source's until the caller sets them.
    """
    _clone_onto(source, target, _fclonefileat, _path_of)


def _clone_onto(source: int, target: int, clone: Call, path_of: PathOf) -> None:
    path = path_of(target)
    new = f"{path}.{secrets.token_hex(4)}.clone"
    clone(source, new)
    try:
        os.chmod(new, 0o600)  # noqa: PTH101 - of a version that may not be written, and the copy may
        opened = os.open(new, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.replace(new, path)  # noqa: PTH105 - the same
            os.dup2(opened, target, inheritable=False)
        finally:
            os.close(opened)
    except BaseException:
        if os.path.exists(new):  # noqa: PTH110 - the same
            os.unlink(new)  # noqa: PTH108 - the same
        raise


def _fclonefileat(source: int, path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fclonefileat(source, _AT_FDCWD, os.fsencode(path), 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _path_of(file: int) -> str:
    return os.fsdecode(fcntl.fcntl(file, _F_GETPATH, bytes(_PATH_BYTES)).rstrip(b"\0"))
