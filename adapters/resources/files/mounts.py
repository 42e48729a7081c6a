"""Overlay mounts by the kernel's mount API of file descriptors (Linux 5.2 and later), through ctypes.

With it every layer is a parameter of its own (one string ``lowerdir=a:b:c`` is cut off at a page, and a colon in a path
would split it), a mount exists before it is attached anywhere, and it can be slid beneath the one that it replaces, so
that a path never shows anything but the one or the other.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

# The same numbers on every architecture: these calls came after the tables were united.
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 429, 430, 431, 432, 433

_FSOPEN_CLOEXEC = 1
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH = 1, 8
_SET_FLAG, _SET_STRING, _CREATE, _RECONFIGURE = 0, 1, 6, 7
_FSMOUNT_CLOEXEC = 1
_MOVE_FROM_EMPTY_PATH, _MOVE_BENEATH = 0x4, 0x200
_MNT_DETACH = 2
_AT_FDCWD = -100
_MESSAGE_BYTES = 4096


class Overlay:
    """A mounted overlay: the descriptor through which it is attached, made read-only and let go."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def attach(self, place: Path, *, beneath: bool = False) -> None:
        """Show it at a directory; ``beneath``: under what is mounted there, to appear when that is detached."""
        flags = _MOVE_FROM_EMPTY_PATH | (_MOVE_BENEATH if beneath else 0)
        _call(_MOVE_MOUNT, self._descriptor, b"", _AT_FDCWD, os.fsencode(place), flags, about=place)

    def set_read_only(self, *, on: bool) -> None:
        """For everybody, also through files that are open. Raises OSError EBUSY when one is open for writing."""
        context = _call(_FSPICK, self._descriptor, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)
        try:
            with _explained(context):
                _configure(context, _SET_FLAG, "ro" if on else "rw")
                _configure(context, _RECONFIGURE)
        finally:
            os.close(context)

    def device(self) -> int:
        """The device number that its files show in ``stat``."""
        return os.fstat(self._descriptor).st_dev

    def close(self) -> None:
        """Let go of the descriptor; what is attached stays. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def mount_overlay(lowers: Sequence[Path], upper: Path, work: Path, options: Sequence[str]) -> Overlay:
    """A new overlay of read-only layers, top first, and a writable one; attached nowhere yet."""
    context = _call(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC)
    try:
        with _explained(context):
            for lower in lowers:
                _configure(context, _SET_STRING, "lowerdir+", str(lower))
            _configure(context, _SET_STRING, "upperdir", str(upper))
            _configure(context, _SET_STRING, "workdir", str(work))
            for option in options:
                name, is_pair, value = option.partition("=")
                _configure(context, _SET_STRING if is_pair else _SET_FLAG, name, value if is_pair else None)
            _configure(context, _CREATE)
            return Overlay(_call(_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0))
    finally:
        os.close(context)


def detach(place: Path) -> None:
    """Take the uppermost mount off a directory at once; it ends when its last open file is closed."""
    if _LIBC.umount2(os.fsencode(place), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def mounted_below(directory: Path) -> list[Path]:
    """Mount points at or below a directory, one for each mount, in the order in which they can be detached."""
    root = str(directory.resolve())
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        place = _unescaped(line.split(" ")[4])
        if place == root or place.startswith(root + "/"):
            found.append(Path(place))
    return found[::-1]


def _unescaped(text: str) -> str:
    """A path of the kernel's tables, where blanks stand as octal numbers."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text


def _configure(context: int, command: int, key: str | None = None, value: str | None = None) -> None:
    _call(
        _FSCONFIG,
        context,
        command,
        key.encode() if key is not None else None,
        os.fsencode(value) if value is not None else None,
        0,
    )


def _call(number: int, *arguments: int | bytes | None, about: Path | None = None) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(about) if about else None)
    return result


@contextmanager
def _explained(context: int) -> Iterator[None]:
    """Add to an error what the kernel wrote about it."""
    try:
        yield
    except OSError as error:
        messages = []
        os.set_blocking(context, False)
        with suppress(OSError):
            while message := os.read(context, _MESSAGE_BYTES):
                messages.append(message.decode(errors="replace").strip())
        if not messages:
            raise
        raise OSError(error.errno, f"{error.strerror}: {'; '.join(messages)}") from error
