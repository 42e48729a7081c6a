"""Which files a run wrote, and who: heard from the kernel (fanotify, as root), or found by their change times.

Heard, each write has a process, and only those of the run count, beside those of processes that had ended before
anybody could look. Found by a walk of directories, anybody may have written them. Such findings name no program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from statefork.adapters.resources.process.standing import started

_CLOEXEC, _NONBLOCK, _UNLIMITED_QUEUE = 0x1, 0x2, 0x10
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_CLOSE_WRITE = 0x8
_AT_FDCWD = -100
_EVENT = struct.Struct("IBBHQii")
_READ_BYTES = 256 * _EVENT.size
_LOOK_AGAIN_MS = 100
_FOUND_MAX = 20_000
_PASSED_OVER = frozenset({"__pycache__", ".git", "proc", "sys", "dev"})


class Write(msgspec.Struct, frozen=True, order=True):
    """A file that was written. ``program`` is empty where nobody knows who wrote it."""

    path: str
    program: str = ""


class Heard:
    """Listens from ``begin`` to ``end``. Raises PermissionError, OSError at the beginning where that can't be had."""

    def __init__(self, roots: Sequence[Path], program: Callable[[int], str | None]) -> None:
        self._roots = roots
        self._program = program
        self._found: set[Write] = set()
        self.unknown = 0  # writes by processes that had ended before anybody could tell whose they were: they count
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="statefork-writes", daemon=True)
        self._file = -1

    def begin(self) -> None:
        """Start listening."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = libc.fanotify_init(_CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE, os.O_RDONLY | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        for root in {path.stat().st_dev: path for path in self._roots}.values():
            place = os.fsencode(root)
            flags = _MARK_ADD | _MARK_FILESYSTEM
            if libc.fanotify_mark(self._file, flags, ctypes.c_uint64(_CLOSE_WRITE), _AT_FDCWD, place):
                number = ctypes.get_errno()
                os.close(self._file)
                raise OSError(number, os.strerror(number), str(root))
        self._thread.start()

    def end(self) -> list[Write]:
        """Stop; the files that are there now, and were written by the run."""
        self._over.set()
        self._thread.join()
        self._take()
        os.close(self._file)
        return sorted(self._found)

    def _listen(self) -> None:
        waiting = select.poll()
        waiting.register(self._file, select.POLLIN)
        while not self._over.is_set():
            if waiting.poll(_LOOK_AGAIN_MS):
                self._take()

    def _take(self) -> None:
        while True:
            try:
                data = os.read(self._file, _READ_BYTES)
            except BlockingIOError:
                return
            while data:
                length, _, _, _, _, file, pid = _EVENT.unpack_from(data)
                data = data[length:]
                if file >= 0:
                    self._heard(file, pid)

    def _heard(self, file: int, pid: int) -> None:
        try:
            path = os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115 - the text as it stands: it may say (deleted)
        finally:
            os.close(file)
        if path.endswith(" (deleted)") or len(self._found) >= _FOUND_MAX:
            return
        program = self._program(pid)
        if program is not None:
            self._found.add(Write(path, program))
        elif not started(pid) and any(Path(path).is_relative_to(root) for root in self._roots):
            self.unknown += 1
            self._found.add(Write(path))


class Walked:
    """Compares change times: for who may not listen."""

    unknown = 0

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._since_ns = 0

    def begin(self) -> None:
        """Note what time it is for the file system."""
        with tempfile.NamedTemporaryFile() as file:
            self._since_ns = Path(file.name).stat().st_ctime_ns

    def end(self) -> list[Write]:
        """What has changed since."""
        return sorted(set(self._changed()))

    def _changed(self) -> Iterator[Write]:
        for root in self._roots:
            for folder, folders, files in os.walk(root):
                folders[:] = [name for name in folders if name not in _PASSED_OVER]
                for name in files:
                    with contextlib.suppress(OSError):
                        path = os.path.join(folder, name)  # noqa: PTH118 - one for each file of a disk
                        status = os.lstat(path)
                        if stat.S_ISREG(status.st_mode) and status.st_ctime_ns > self._since_ns:
                            yield Write(path)


def is_sqlite(path: str) -> bool:
    """Whether a file is a database of SQLite, by its first bytes."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
    return False


def is_scratch(path: str) -> bool:
    """Whether nobody would miss it: caches of bytecode, what the kernel shows as files."""
    return any(part in _PASSED_OVER for part in Path(path).parts[:-1])
