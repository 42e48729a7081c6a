"""Loop devices: a file as a block device, found again by the file itself, gone by itself with its last user.

A device is set up in one call (LOOP_CONFIGURE, Linux 5.8) with *autoclear*: when the last who has it open lets go, a
mount or a process, the kernel frees it. So a killed process leaves a device only where it also leaves a mount.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from statefork.adapters.interfaces.store.errors import StoreUnavailable

_CONTROL = "/dev/loop-control"
_CONFIGURE, _SET_CAPACITY, _GET_STATUS, _GET_FREE = 0x4C0A, 0x4C07, 0x4C05, 0x4C82
_AUTOCLEAR, _DIRECT_IO = 4, 16
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_CONFIG = struct.Struct("=II")
_RESERVED_BYTES = 64
_BLOCK_BYTES = 4096
_TRIES = 32  # others take free devices, too


class Device(NamedTuple):
    """A loop device that is in use: its path, and an open descriptor that keeps it."""

    path: str
    descriptor: int

    def close(self) -> None:
        """Let go; the device goes when nobody else has it."""
        os.close(self.descriptor)

    def follow_size(self) -> None:
        """Take on the size that the file has now."""
        fcntl.ioctl(self.descriptor, _SET_CAPACITY)


def devices_of(image: Path) -> list[str]:
    """The loop devices that hold a file, whoever set them up, from wherever. Raises nothing: those it may look at."""
    try:
        wanted = image.stat()
    except OSError:
        return []
    found = []
    for entry in sorted(Path("/sys/block").glob("loop*/loop")):
        path = f"/dev/{entry.parent.name}"
        identity = _identity(path)
        if identity is None:  # not root: the kernel's name for the file has to do
            try:
                backing = Path((entry / "backing_file").read_text().rstrip("\n")).stat()
            except OSError:
                continue
            identity = (backing.st_dev, backing.st_ino)
        if identity == (wanted.st_dev, wanted.st_ino):
            found.append(path)
    return found


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file behind a loop device; None where it can't be asked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _identity_of(descriptor)
    finally:
        os.close(descriptor)


def _identity_of(descriptor: int) -> tuple[int, int] | None:
    try:
        answer = fcntl.ioctl(descriptor, _GET_STATUS, bytes(_INFO.size))
    except OSError as error:
        return (0, 0) if error.errno == errno.ENXIO else None  # it was freed meanwhile
    device, inode, *_ = _INFO.unpack(answer)
    return device, inode


def opened(path: str) -> Device:
    """A device, kept from being freed (from now on)."""
    return Device(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))


def device_for(image: Path) -> Device:
    """The device that holds a file already, so that it is never two devices, or else a new one.

    Raises StoreUnavailable where the machine gives none.
    """
    for path in devices_of(image):
        with contextlib.suppress(OSError):
            device = opened(path)
            status = image.stat()
            if _identity_of(device.descriptor) == (status.st_dev, status.st_ino):
                return device
            device.close()  # it was let go by its last user just now
    return attach(image)


def attach(image: Path) -> Device:
    """A new device for a file. Raises StoreUnavailable where the machine gives none."""
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device = _free()
            try:
                _configure(device, file, image)
            except OSError as error:
                device.close()
                if error.errno != errno.EBUSY:
                    raise _unavailable(device.path, error) from error
            except BaseException:
                device.close()
                raise
            else:
                return device
    finally:
        os.close(file)
    raise StoreUnavailable("every free loop device was taken by somebody else first", hint="Try again")


def _configure(device: Device, file: int, image: Path) -> None:
    name = os.fsencode(image)[-63:]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR | _DIRECT_IO, name, b"", b"", 0, 0)
    fcntl.ioctl(device.descriptor, _CONFIGURE, _CONFIG.pack(file, _BLOCK_BYTES) + info + bytes(_RESERVED_BYTES))


def _free() -> Device:
    path = _CONTROL
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
        finally:
            os.close(control)
        return opened(path)
    except OSError as error:
        raise _unavailable(path, error) from error


def fault() -> str:
    """Why there are no loop devices here; empty where there are."""
    if not os.path.exists(_CONTROL):  # noqa: PTH110 - a device, not a path of ours
        return f"there is no {_CONTROL} (kernel module loop; a container gets it with --privileged)"
    return "" if os.access(_CONTROL, os.R_OK | os.W_OK) else f"{_CONTROL} may not be opened"


def _unavailable(path: str, error: OSError) -> StoreUnavailable:
    if error.errno in (errno.ENOTTY, errno.EINVAL):
        return StoreUnavailable(f"{path} can't be set up: {error.strerror}", hint="It takes Linux 5.8 or later")
    return StoreUnavailable(
        f"there is no loop device: {path}: {error.strerror}",
        hint="Run as root, with the kernel's module loop (modprobe loop); a container needs --privileged. "
        "Without a store everything works by copying",
    )
