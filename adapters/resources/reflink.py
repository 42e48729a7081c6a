"""Copying a file's bytes: sharing its extents where the file system can (btrfs, XFS, …), else by copying them.

FICLONE makes a second file over the same extents in a fraction of a millisecond whatever the size; each side then gets
extents of its own where it is written. Some file systems accept neighbouring calls and copy silently, so a file system
counts as one with reflinks only when FIEMAP says that the extents of a trial clone are shared.

macOS has another call for the same, see :mod:`statefork.adapters.resources.apfs`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from statefork.adapters.resources.apfs import clone_onto, is_macos

_FICLONE = 0x40049409
_FIEMAP = 0xC020660B
_FIEMAP_FLAG_SYNC = 1
_EXTENT_LAST = 0x1
_EXTENT_SHARED = 0x2000
_EXTENT_UNKNOWN = 0x2  # not allocated yet
_FIEMAP_HEAD = struct.Struct("=QQLLLL")
_FIEMAP_EXTENT = struct.Struct("=QQQQQLLLL")
_EXTENTS_AT_A_TIME = 256
_CHUNK_BYTES = 8 << 20
_TRIAL_BYTES = 64 << 10

Pulse = Callable[[], None]
"""Called between pieces of long work; raises when the caller was cancelled."""


def no_pulse() -> None:
    """For work that nobody cancels."""


class ReflinkProbe(msgspec.Struct, frozen=True):
    """Whether clones share extents in a directory, and how that was found out."""

    works: bool
    reason: str


def probe_reflink(directory: Path) -> ReflinkProbe:
    """Try it: clone a file, see whether its extents are shared, write to the clone, see whether the source changed."""
    directory.mkdir(parents=True, exist_ok=True)
    source, clone = (directory / f".reflink-{secrets.token_hex(6)}" for _ in range(2))
    data = secrets.token_bytes(_TRIAL_BYTES)
    try:
        source.write_bytes(data)
        with source.open("rb") as reading, clone.open("wb") as writing:
            os.fsync(reading.fileno())
            _clone(reading.fileno(), writing.fileno())
        if not is_macos() and shared_bytes(clone) < _TRIAL_BYTES:
            return ReflinkProbe(False, "the file system accepts clones but copies the bytes")
        with clone.open("r+b") as writing:
            writing.write(b"\0" * 4096)
        if source.read_bytes() != data:
            return ReflinkProbe(False, "writing to a clone altered its source")
    except OSError as error:
        return ReflinkProbe(False, f"the file system has no reflinks ({error.strerror})")
    finally:
        source.unlink(missing_ok=True)
        clone.unlink(missing_ok=True)
    if is_macos():
        return ReflinkProbe(True, "clones share their blocks (APFS; untested on macOS)")
    return ReflinkProbe(True, "clones share their extents (FICLONE, seen by FIEMAP)")


def _clone(source: int, target: int) -> None:
    if is_macos():
        clone_onto(source, target)
    else:
        fcntl.ioctl(target, _FICLONE, source)


def shared_bytes(path: Path) -> int:
    """How many of a file's bytes lie in extents that other files have too. 0 where the file system can't tell."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return shared_bytes_of(file)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
            return 0
        raise
    finally:
        os.close(file)


def shared_bytes_of(file: int) -> int:
    """The same of an open file. Raises OSError where the file system can't tell."""
    return sum(extent.length for extent in extents_of(file) if extent.shared)


class Extent(NamedTuple):
    """Where some of a file's bytes lie on its device. What is not allocated yet has no place and is never shared."""

    place: int
    length: int
    shared: bool
    known: bool


def extents_of(file: int) -> Iterator[Extent]:
    """Where an open file's bytes lie, after they were written out. Raises OSError where the file system can't tell."""
    start = 0
    while True:
        request = bytearray(_FIEMAP_HEAD.size + _FIEMAP_EXTENT.size * _EXTENTS_AT_A_TIME)
        _FIEMAP_HEAD.pack_into(request, 0, start, 2**64 - 1 - start, _FIEMAP_FLAG_SYNC, 0, _EXTENTS_AT_A_TIME, 0)
        fcntl.ioctl(file, _FIEMAP, request)
        mapped = _FIEMAP_HEAD.unpack_from(request)[3]
        flags = _EXTENT_LAST
        for index in range(mapped):
            extent = _FIEMAP_EXTENT.unpack_from(request, _FIEMAP_HEAD.size + index * _FIEMAP_EXTENT.size)
            logical, place, length, flags = extent[0], extent[1], extent[2], extent[5]
            known = not flags & _EXTENT_UNKNOWN
            yield Extent(place, length, shared=bool(flags & _EXTENT_SHARED) and known, known=known)
            start = logical + length
        if not mapped or flags & _EXTENT_LAST:
            return


def copy_bytes(source: int, target: int, *, reflink: bool, pulse: Pulse = no_pulse) -> None:
    """Give the empty open file ``target`` the bytes of the open file ``source``.

    With ``reflink`` the extents are shared; where one file can't be cloned (another file system) it is copied.
    """
    if reflink:
        try:
            _clone(source, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    offset = 0
    while count := _copy_piece(source, target, offset):
        offset += count
        pulse()


def _copy_piece(source: int, target: int, offset: int) -> int:
    """Copy the bytes at an offset without moving the source's own position; the number copied, 0 at the end."""
    try:
        if is_macos():
            raise OSError(errno.ENOSYS, "macOS has no copy_file_range")
        return os.copy_file_range(source, target, _CHUNK_BYTES, offset, offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    data = os.pread(source, _CHUNK_BYTES, offset)
    written = 0
    while written < len(data):
        written += os.pwrite(target, data[written:], offset + written)
    return written
