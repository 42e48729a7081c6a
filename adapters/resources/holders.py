"""Who holds a file: told by the kernel's tables, as far as this user may read them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_WRITING = os.O_WRONLY | os.O_RDWR


class Holder(msgspec.Struct, frozen=True, order=True):
    """A process that holds a file open or locked."""

    pid: int
    name: str
    path: str = ""

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid}{', this engine' if self.pid == os.getpid() else ''})"
        return f"{who} on {self.path}" if self.path else who


def process_name(pid: int) -> str:
    """What a person calls a process: its command's name; ``?`` when it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "?"


def openers(wanted: Callable[[str, os.stat_result], bool], *, writing: bool = False) -> list[Holder]:
    """The processes with an open file that ``wanted(path, stat)`` accepts; only those open for writing if asked."""
    found = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            for descriptor in (entry / "fd").iterdir():
                if path := _accepted(descriptor, wanted, writing):
                    found.add(Holder(int(entry.name), process_name(int(entry.name)), path))
    return sorted(found)


def mappers(within: str) -> list[Holder]:
    """The processes that have a file below a directory mapped for writing (its descriptor may be closed by now)."""
    found = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            for line in (entry / "maps").read_text(errors="surrogateescape").splitlines():
                _, modes, *_, path = line.split(None, 5) if line.count(" ") >= 5 else ("", "", "")
                if modes.startswith("rw") and modes.endswith("s") and path.startswith(within):
                    found.add(Holder(int(entry.name), process_name(int(entry.name)), path))
    return sorted(found)


def _accepted(descriptor: Path, wanted: Callable[[str, os.stat_result], bool], writing: bool) -> str:
    try:
        path = str(descriptor.readlink())
        if not path.startswith("/") or not wanted(path, descriptor.stat()):
            return ""
        if writing and not _opened_for_writing(descriptor):
            return ""
    except OSError:
        return ""
    return path


def _opened_for_writing(descriptor: Path) -> bool:
    information = (descriptor.parent.parent / "fdinfo" / descriptor.name).read_text()
    flags = next(line.split()[1] for line in information.splitlines() if line.startswith("flags:"))
    return bool(int(flags, 8) & _WRITING)


def lockers(files: Iterable[tuple[Path, range]]) -> list[Holder]:
    """The processes with a POSIX lock that touches one of the byte ranges, for each file."""
    ranges: dict[tuple[int, int, int], tuple[Path, range]] = {}
    for path, span in files:
        with contextlib.suppress(OSError):
            status = path.stat()
            ranges[os.major(status.st_dev), os.minor(status.st_dev), status.st_ino] = (path, span)
    found = set()
    for pid, inode, first, last in _posix_locks():
        if inode not in ranges:
            continue
        path, span = ranges[inode]
        if first < span.stop and last >= span.start:
            found.add(Holder(pid, process_name(pid), str(path)))
    return sorted(found)


def _posix_locks() -> Iterator[tuple[int, tuple[int, int, int], int, int]]:
    """Pid, (major, minor, inode), first and last byte of every lock held (not waited for)."""
    try:
        text = (_PROC / "locks").read_text()
    except OSError:
        return
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX":
            continue  # "->" marks one who waits
        major, minor, inode = fields[5].split(":")
        last = 2**63 if fields[7] == "EOF" else int(fields[7])
        yield int(fields[4]), (int(major, 16), int(minor, 16), int(inode)), int(fields[6]), last


def told(holders: Iterable[Holder], *, most: int = 5) -> str:
    """A list for an error message."""
    names = [str(holder) for holder in holders]
    if not names:
        return "a process that this user can't see"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
