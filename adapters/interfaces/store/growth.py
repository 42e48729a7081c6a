"""Growing a store under use. It never shrinks: XFS can't.

The image's bytes are taken from the disk below (``fallocate``) *before* the file system learns of them, so a store
never finds that disk full. A *sparse* one takes them as it writes, and must force every sealed version to the disk.
A growth that was interrupted leaves an image that is larger than its file system: the next opening goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statefork.adapters.interfaces.store import loop
from statefork.adapters.interfaces.store.errors import StoreFull, StoreUnavailable
from statefork.adapters.interfaces.store.kinds import KINDS, run
from statefork.adapters.interfaces.store.mounting import Mounted
from statefork.adapters.interfaces.store.place import Place, Record
from statefork.adapters.interfaces.store.sizes import GIB, MIB, show_size

HOST_FREE_MIN = GIB
"""Bytes that a store which grows by itself leaves free on the disk below, for the journal and everybody else."""

GROWTH_BYTES_MIN = 32 * MIB
"""Growing by less is not worth while."""

_HEADROOM_MAX = 4 * GIB
_STEP_MAX = 32 * GIB
_LIBC = ctypes.CDLL(None, use_errno=True)


def next_size(size: int, free: int, host_free: int, limit: int) -> int:
    """To how many bytes a store of ``size`` should grow by itself; 0: not now.

    It grows by half when less than a quarter is free (at most 4 GiB are kept free and 32 GiB added), as far as its
    limit and the disk below allow.
    """
    if free >= min(size // 4, _HEADROOM_MAX):
        return 0
    step = min(max(size // 2, GROWTH_BYTES_MIN), _STEP_MAX, host_free - HOST_FREE_MIN)
    if limit:
        step = min(step, limit - size)
    return size + step // MIB * MIB if step >= GROWTH_BYTES_MIN else 0


def free_bytes(directory: Path) -> int:
    """What may still be written there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def grow_if_needed(mounted: Mounted) -> int:
    """Grow a store that gets full, where it may; by how many bytes."""
    place, record = mounted.place, mounted.record
    if not mounted.ours:
        return 0
    size = place.image.stat().st_size
    wanted = next_size(size, free_bytes(place.mounted), free_bytes(place.folder), record.limit_bytes)
    if not wanted:
        return 0
    with growing(place):
        now = place.image.stat().st_size
        if now < wanted:
            grow(place, record, wanted)
    return wanted - size


@contextmanager
def growing(place: Place) -> Iterator[None]:
    """One at a time, from whatever process."""
    folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def grow(place: Place, record: Record, size: int) -> None:
    """Make a mounted store's image, and the file system in it, ``size`` bytes large. Call inside ``growing``.

    Raises StoreFull, with everything as it was, where the disk below has no room.
    """
    before = place.image.stat().st_size
    extend(place.image, size, sparse=record.sparse)
    try:
        follow(place, record)
    except OSError as error:
        raise StoreUnavailable(
            f"the store of {place.state} could not be grown from {show_size(before)} to {show_size(size)}: "
            f"{error.strerror or error}",
            hint="It goes on as it was; opening it again goes on with it",
        ) from error


def follow(place: Place, record: Record) -> None:
    """Let loop device and file system take on the image's size."""
    for path in loop.devices_of(place.image):
        device = loop.opened(path)
        try:
            device.follow_size()
        finally:
            device.close()
    kind = KINDS[record.kind]
    run(kind, kind.grow(place.mounted))


def extend(image: Path, size: int, *, sparse: bool) -> None:
    """Make a file larger, with its blocks unless it is to be sparse. Raises StoreFull; the file is then as before."""
    with image.open("r+b") as file:
        before = file.seek(0, os.SEEK_END)
        try:
            if sparse:
                file.truncate(max(size, before))
            else:
                _allocate(file.fileno(), max(size, before))
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise _no_room(image, size - before, error) from error


def _allocate(file: int, size: int) -> None:
    """The blocks of a whole file, holes in it too. (``posix_fallocate`` would write zeros where this is unknown.)"""
    if _LIBC.fallocate(file, 0, ctypes.c_longlong(0), ctypes.c_longlong(size)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _no_room(image: Path, wanted: int, error: OSError) -> StoreFull | StoreUnavailable:
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        return StoreUnavailable(
            f"the file system of {image.parent} can't set blocks aside: {error.strerror}",
            hint="Choose another --state, or make the store with --sparse",
            path=str(image),
        )
    return StoreFull(
        f"the disk of {image.parent} has no room for {show_size(wanted)} more of the store: {error.strerror}",
        hint="Make room there, or ask for less; nothing was changed",
        path=str(image),
        wanted_bytes=wanted,
    )
