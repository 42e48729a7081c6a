"""Mounting a store, finding one that is mounted already, and taking it off again."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from statefork.adapters.interfaces.store import loop
from statefork.adapters.interfaces.store.errors import StoreForeign, StoreLost, StoreUnavailable
from statefork.adapters.interfaces.store.kinds import KINDS, install, superblock
from statefork.adapters.interfaces.store.place import Mark, Place, Record, read_mark, write_mark
from statefork.adapters.resources.files.mounts import detach
from statefork.adapters.resources.holders import openers

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOSUID, _NODEV, _NOATIME = 2, 4, 1024
_BUSY_S_MAX = 3.0
_BUSY_POLL_S = 0.01
_logger = logging.getLogger(__name__)


class Mount(NamedTuple):
    """A line of the kernel's table: where, and what."""

    place: Path
    source: str


class Mounted:
    """A store that is mounted. ``ours``: whether it is for us to take it off again."""

    def __init__(self, place: Place, record: Record, device: loop.Device | None, lock: int | None) -> None:
        self.place = place
        self.record = record
        self.device = device
        self.ours = device is not None
        self._lock = lock
        # The kernel tells a lost write once to everybody who had the file system open then, and to nobody later.
        self._root = os.open(place.mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._number = os.fstat(self._root).st_dev

    def fault(self) -> str:
        """Why it is of no use any more; empty while it is."""
        place = self.place
        try:
            if place.mounted.stat().st_dev != self._number:
                return "it is not mounted any more"
            os.close(os.open(place.mark, os.O_RDONLY | os.O_CLOEXEC))
            if os.statvfs(place.mounted).f_flag & os.ST_RDONLY:
                return "its file system can only be read any more"
        except FileNotFoundError:
            return f"{place.mark.name} was removed from it"
        except OSError as error:
            if error.errno == errno.EIO:
                return "its file system has shut down, since something could not be written"
            return error.strerror or str(error)
        return ""

    def check(self) -> None:
        """Raise StoreLost where it is of no use any more."""
        if why := self.fault():
            raise StoreLost(
                f"the store of {self.place.state} is lost: {why}",
                hint="See what the disk and `dmesg` say (a full disk? somebody who unmounted it?), then open it again: "
                "all generations that were published are there",
                path=str(self.place.mounted),
            )

    def sync(self) -> None:
        """Force everything in it to the disk below. Raises StoreLost where that could not take all of it."""
        if _LIBC.syncfs(self._root) != 0:
            why = os.strerror(ctypes.get_errno())
            raise StoreLost(
                f"the store of {self.place.state} could not be written to the disk that it lies on: {why}",
                hint="Make room on that disk, then open it again: all generations that were published are there",
                path=str(self.place.image),
            )

    def close(self) -> None:
        """Unmount it, if it is ours, and let go of the loop device. Never raises: what stays is found again."""
        self._let_go()
        if self.ours:
            unmount(self.place)
        self.forget()

    def _let_go(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def forget(self) -> None:
        """Let it stay mounted. Idempotent."""
        self._let_go()
        if self.device is not None:
            self.device.close()
            self.device = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def mounts_at(place: Path) -> list[Mount]:
    """What is mounted at a directory, the uppermost last."""
    wanted = os.path.realpath(place)
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        where = fields[4].encode(errors="surrogateescape").decode("unicode_escape").encode("latin-1")
        if os.fsdecode(where) == wanted:
            found.append(Mount(Path(wanted), fields[fields.index("-") + 2]))
    return found


def is_mounted(place: Place) -> bool:
    """Whether the store's image is what is mounted in its place."""
    there = mounts_at(place.mounted)
    return bool(there) and there[-1].source in loop.devices_of(place.image)


def mount_store(place: Place, record: Record, *, new: bool = False) -> Mounted:
    """Mount a store, or take over the mount that a killed process left. Call under the state directory's lock.

    A ``new`` one gets its mark.

    Raises StoreUnavailable (not root, no loop devices), StoreForeign (it is not this store), StoreLost (the file system
    gave up, and still somebody uses it).
    """
    _check_image(place, record)
    if os.geteuid() != 0:
        return _as_user(place, record)
    lock = _locked(place)
    device: loop.Device | None = None
    try:
        device = loop.device_for(place.image)
        _clear(place, device.path)
        if not mounts_at(place.mounted):
            _mount(place, record, device.path)
        mounted = Mounted(place, record, device, lock)
    except BaseException:
        if device is not None:
            device.close()
        os.close(lock)
        raise
    try:
        if new:
            write_mark(place, Mark(id=record.id))
        mounted.check()
        _check_mark(place, record)
    except BaseException:
        mounted.close()
        raise
    return mounted


def _check_image(place: Place, record: Record) -> None:
    try:
        found = superblock(place.image)
    except FileNotFoundError:
        raise StoreForeign(
            f"the store's image {place.image} is gone",
            hint="Put it back: databases and files are in it; nothing was changed",
            path=str(place.image),
        ) from None
    except PermissionError:
        return  # of root's; what is mounted already may be used all the same
    if found is None or (found.kind, found.uuid) != (record.kind, record.uuid):
        what = f"a {found.kind} file system {found.uuid}" if found else "no file system that is known here"
        raise StoreForeign(
            f"{place.image} is not the store of {place.state}: it holds {what}, not {record.kind} {record.uuid}",
            hint="Put the right image back; it was not touched",
            path=str(place.image),
        )


def _check_mark(place: Place, record: Record) -> None:
    mark = read_mark(place)
    if mark.id != record.id:
        raise StoreForeign(
            f"{place.image} is store {mark.id}, and {place.state} has store {record.id}",
            hint="Put the right image back; it was not touched",
            path=str(place.image),
        )


def _as_user(place: Place, record: Record) -> Mounted:
    if not is_mounted(place):
        raise StoreUnavailable(
            f"the store of {place.state} can only be mounted by root",
            hint="Run as root; or have root mount it first (statefork store mount), and run as the user that owns it",
            path=str(place.mounted),
        )
    mounted = Mounted(place, record, None, None)
    mounted.check()
    _check_mark(place, record)
    return mounted


def _locked(place: Place) -> int:
    """Hold the image, by whatever path others know it: two engines must not have one file system."""
    file = os.open(place.image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise StoreForeign(
            f"{place.image} is in use by another process",
            hint="It is the store of another state directory, too (a link?), whose engine runs",
            path=str(place.image),
        ) from error
    return file


def _clear(place: Place, device: str) -> None:
    """Take off what was left there and does not work any more. Raises StoreForeign for what is somebody else's."""
    for mount in reversed(mounts_at(place.mounted)):
        if mount.source != device:
            raise StoreForeign(
                f"{mount.source} is mounted at {place.mounted}, and is not the store",
                hint="Unmount it; it was not touched",
                path=str(place.mounted),
            )
        try:
            os.close(os.open(place.mark, os.O_RDONLY | os.O_CLOEXEC))
            return
        except OSError as error:
            if error.errno != errno.EIO:
                return
            with suppress(OSError):
                detach(place.mounted)


def _mount(place: Place, record: Record, device: str) -> None:
    place.mounted.mkdir(exist_ok=True)
    kind = KINDS[record.kind]
    flags = _NOSUID | _NODEV | _NOATIME
    arguments = (device.encode(), os.fsencode(place.mounted), kind.name.encode(), flags, kind.options.encode())
    if _LIBC.mount(*arguments) == 0:
        return
    number = ctypes.get_errno()
    hints = {
        errno.EPERM: "This root may not mount (a container?): give it CAP_SYS_ADMIN (--privileged)",
        errno.ENODEV: f"This kernel has no {kind.name}",
        errno.EUCLEAN: f"Repair it: {_repair(place, record)} ({install(kind)})",
        errno.EIO: "The disk below fails, or is full: make room there, see `dmesg`",
        errno.ENOSPC: "The disk below is full: make room there",
        errno.EBUSY: "Somebody has it mounted elsewhere: see `losetup -a` and /proc/mounts",
    }
    raise StoreUnavailable(
        f"the store of {place.state} can't be mounted: {os.strerror(number)}",
        hint=hints.get(number, "See `dmesg`"),
        path=str(place.mounted),
        errno=number,
    )


def _repair(place: Place, record: Record) -> str:
    return f"xfs_repair {place.image}" if record.kind == "xfs" else f"btrfs check {place.image}"


def unmount(place: Place) -> bool:
    """Unmount whatever is in a store's place, waiting for who is just letting go; False where somebody stays.

    He keeps what he has open; nobody else sees it any more, and the loop device goes with his last file. Never raises.
    """
    clean = True
    until = time.monotonic() + _BUSY_S_MAX
    while mounts_at(place.mounted):
        if _LIBC.umount2(os.fsencode(place.mounted), 0) == 0:
            continue
        number = ctypes.get_errno()
        if number == errno.EBUSY and time.monotonic() < until:
            time.sleep(_BUSY_POLL_S)
            continue
        clean = False
        why = _holders(place) if number == errno.EBUSY else os.strerror(number)
        _logger.warning("%s could not be unmounted at once: %s", place.mounted, why)
        try:
            detach(place.mounted)
        except OSError:
            break
    return clean


def _holders(place: Place) -> str:
    try:
        number = place.mounted.stat().st_dev
    except OSError:
        return "somebody holds it"
    return ", ".join(map(str, openers(lambda path, status: status.st_dev == number))) or "somebody works in it"
