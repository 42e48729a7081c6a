"""One writer for a state directory, from whatever process.

The lock is the kernel's (flock on ``<state>/lock``): it ends with its holder, however that ends, so there is no stale
lock to remove. The file's text is only for people: the pid of the holder, and whether it is closing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import pwd
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from statefork.journal.errors import JournalUnavailable, StateLocked

LOCK_NAME = "lock"
_CLOSING = "closing"
_LOCKS = Path("/proc/locks")  # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:123456 0 EOF"


class StateLock:
    """Holds a state directory, made where it is missing, for writing while the context is open.

    Raises StateLocked, naming the holder, and JournalUnavailable where the directory can't be written.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / LOCK_NAME
        self._file: int | None = None

    def __enter__(self) -> StateLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            whose = owner_of(self._path.parent) if isinstance(error, PermissionError) else ""
            raise JournalUnavailable(
                f"The state directory {self._path.parent} can't be opened for writing: {why}"
                f"{whose and f' (it belongs to {whose})'}",
                hint=f"Do it as {whose}, or choose another directory"
                if whose
                else "Give write permission, or choose another directory",
                path=str(self._path.parent),
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip()
            os.close(file)
            raise self._locked(holder) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same, only its text is missing
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            os.close(self._file)  # closing is what lets go: the file itself stays, or two could lock two files
            self._file = None

    def _locked(self, text: str) -> StateLocked:
        pid, closes = _read(text)
        state = self._path.parent
        if closes:
            said = f"The state directory {state} is open for writing by {_whose(pid)}, which is closing"
            hint = "Wait until that has ended, and try again"
        elif pid == os.getpid():
            said = f"The state directory {state} is open in this program already"
            hint = "Use the engine that has it open, close that first, or choose another directory"
        else:
            said = f"The state directory {state} is open for writing by {_whose(pid)}"
            hint = "Use that engine (commands find it by its control socket), stop it, or choose another directory"
        return StateLocked(said, hint=f"{hint}. Reading is possible meanwhile", path=str(state), pid=pid)


def _whose(pid: int | None) -> str:
    return f"process {pid}" if pid is not None else "another process"


def _read(text: str) -> tuple[int | None, bool]:
    """Who holds it, as the file's text says, and whether that is closing."""
    pid, _, more = text.strip().partition(" ")
    return int(pid) if pid.isdecimal() else None, more == _CLOSING


def tell_closing(state: Path) -> None:
    """Say to whoever comes that the lock, which this process holds, is about to be let go. Never raises."""
    with contextlib.suppress(OSError):
        file = os.open(state / LOCK_NAME, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, f"{os.getpid()} {_CLOSING}\n".encode(), 0)
        finally:
            os.close(file)


def owner_of(path: Path) -> str:
    """The name of the user to whom a file belongs; empty where that is this user, or can't be seen."""
    try:
        user = path.stat().st_uid
    except OSError:
        return ""
    if user == os.geteuid():
        return ""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


class Holder(NamedTuple):
    """A process that has a state directory open for writing."""

    pid: int
    closing: bool


def holder_of(state: Path) -> Holder | None:
    """Who has a state directory open for writing, found without taking the lock; None: nobody has.

    Raises PermissionError where that can't be seen.
    """
    try:
        wanted = str((state / LOCK_NAME).stat().st_ino)
        pid, closes = _read((state / LOCK_NAME).read_text(errors="replace"))
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and fields[4:5] == [str(pid)] and fields[5].endswith(f":{wanted}"):
                assert pid is not None, "a process has a number"
                return Holder(pid, closes)
    except PermissionError:
        raise
    except OSError:
        return None
    return None


def identity_of(state: Path) -> str:
    """What tells a state directory on this machine from its copies, and from one that another machine has.

    As long as the machine runs, it names what the lock there protects.
    """
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        machine = platform.node()
    status = state.stat()
    return f"{machine}/{status.st_dev}/{status.st_ino}"


def sync_folder(path: Path) -> None:
    """Force the names in a directory to the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
