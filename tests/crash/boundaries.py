"""Every moment at which an engine may be killed: counted in a recording run, and then met with SIGKILL.

A boundary has a name that is the same in every run (``before bind of media for shop #1``); the number tells the
occurrences of one name apart. There are three kinds:

* calls of a resource: before and after each;
* the journal: before and after each append and each event that rides, and in the writer's thread before the commit,
  inside its transaction, and after the fsync, while nobody has had a reply yet;
* what happens on the disk inside of those: before each file or directory is made, renamed or removed by the engine's
  process, and before each mount is attached or detached. Python's own audit hooks tell of those, so that an adapter
  that learns a new step needs nothing here.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from statefork.adapters.resources.files import mounts
from statefork.engine.ports import Resource
from statefork.journal.batch import Entry
from statefork.journal.events import Event
from statefork.journal.log import Append
from statefork.journal.sqlite import SqliteJournal
from statefork.journal.writer import Writer

CALLS = (
    "branch", "bind", "probe", "quiesce", "thaw", "seal", "unbind", "discard", "provision", "start", "stop", "unpack",
)  # fmt: skip
ON_DISK = "on disk:"
_MOVE_MOUNT = 429
_PATHS = {
    "os.mkdir": "make",
    "os.rename": "rename",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.link": "link",
    "os.symlink": "link",
    "os.truncate": "cut",
}
_WRITING = os.O_WRONLY | os.O_RDWR
_CHANCE = re.compile(
    r"-[0-9a-f]{12}(?=$|[-/.])|\.[0-9a-f]{8}(?=\.partial)|(?<=\.overlay)-[0-9a-f]+|(?<=\.ticks)-[0-9a-f]+"
    r"|(?<=tmp/)\d+-|(?<=importing/)[^/]+|(?<=/work/)#[0-9a-f]+|(?<=sealed/base-[0-9a-f]{24})-[0-9a-f]{8}"
)


class Passed(NamedTuple):
    """A boundary, and what the disk looked like there: equal for boundaries between which nothing was written."""

    name: str
    disk: str


class Boundaries:
    """Counts what is passed while it is armed.

    ``kill``: the boundary at which the process ends, by name, or by its number among all that were passed (``12th``).
    ``fail``: where the disk is full.
    """

    def __init__(self, state: Path, *, kill: str = "", fail: Sequence[str] = ()) -> None:
        self.passed: list[Passed] = []
        self._fail = fail
        self.armed = False
        self._kill = kill
        self._state = f"{state}/"
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def at(self, name: str) -> None:
        """A boundary is reached."""
        if not self.armed:
            return
        with self._lock:
            self._counts[name] += 1
            name = f"{name} #{self._counts[name]}"
            if self._kill in (name, f"{self._counts.total()}th"):
                os.kill(os.getpid(), signal.SIGKILL)
            if not self._kill:
                self.passed.append(Passed(name, look(Path(self._state))))
        if name in self._fail:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # --- resources --------------------------------------------------------------------------------------------------

    def watch_resources(self, resources: Mapping[str, Resource]) -> None:
        """Count the calls of these resources."""
        for name, resource in resources.items():
            for method in CALLS:
                setattr(resource, method, self._watched(getattr(resource, method), f"{method} of {name}"))

    def _watched(self, work: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(work)
        async def watched(*arguments: Any) -> Any:
            whose = f" for {env}" if (env := _env_of(arguments)) else ""
            self.at(f"before {what}{whose}")
            result = await work(*arguments)
            self.at(f"after {what}{whose}")
            return result

        return watched

    # --- the journal ------------------------------------------------------------------------------------------------

    def watch_journal(self) -> None:
        """Count what this process's journals write. For a process that ends soon: it is never taken back."""
        append, ride, commit, store = SqliteJournal.append, SqliteJournal.ride, Writer.commit, Writer._store

        async def watched_append(journal: SqliteJournal, *appends: Append, durable: bool = True) -> int:
            what = " + ".join(_told(event) for one in appends for event in one.events)
            self.at(f"before append of {what}")
            position = await append(journal, *appends, durable=durable)
            self.at(f"after append of {what}")
            return position

        def watched_ride(journal: SqliteJournal, stream: str, *events: Event) -> None:
            what = " + ".join(map(_told, events))
            self.at(f"before ride of {what}")
            ride(journal, stream, *events)
            self.at(f"after ride of {what}")

        def watched_commit(writer: Writer, entries: list[Entry]) -> None:
            waits = any(entry.durable for entry in entries)  # how riders meet in commits differs from run to run
            if waits:
                self.at("before the writer's commit")
            commit(writer, entries)
            if waits:
                self.at("after the writer's fsync, before the reply")

        def watched_store(writer: Writer, rows: Any, heads: Any) -> None:
            before_commit = writer._before_commit

            def within() -> None:
                before_commit()
                self.at("within the writer's transaction")

            if any(not row.stream.startswith("act/") for row in rows):
                writer._before_commit = within
            try:
                store(writer, rows, heads)
            finally:
                writer._before_commit = before_commit

        for owner, name, watched in (
            (SqliteJournal, "append", watched_append),
            (SqliteJournal, "ride", watched_ride),
            (Writer, "commit", watched_commit),
            (Writer, "_store", watched_store),
        ):
            setattr(owner, name, watched)

    # --- the disk ---------------------------------------------------------------------------------------------------

    def watch_disk(self) -> None:
        """Count the steps on the disk below the state directory. Never taken back either."""
        sys.addaudithook(self._heard)
        mounts._LIBC = _WatchedLibc(mounts._LIBC, self)  # type: ignore[assignment]  # quacks like the C library

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed or (event != "open" and event not in _PATHS):
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITING:
                return
            what = "write"
        else:
            path, what = arguments[0], _PATHS[event]
        path = _whole(path, arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1)
        if path.startswith(self._state):
            self.at(f"{ON_DISK} before {what} {self.plain(path)}")

    def plain(self, path: str) -> str:
        """A path below the state directory, without the parts that chance gave it."""
        return _CHANCE.sub("-*", path.removeprefix(self._state))


def look(state: Path) -> str:
    """A digest of every file's identity, size and time of writing, and of what is mounted, below a directory."""
    seen = hashlib.sha256(repr(mounts.mounted_below(state)).encode())
    places = [str(state)]
    while places:
        try:
            entries = sorted(os.scandir(places.pop()), key=lambda entry: entry.name)
        except (FileNotFoundError, PermissionError):  # another thread was faster; or overlayfs keeps it to itself
            continue
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                seen.update(f"{entry.path} {status.st_ino} {status.st_size} {status.st_mtime_ns}".encode())
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
    return seen.hexdigest()


class _WatchedLibc:
    """The C library, with the calls that change what is mounted counted."""

    def __init__(self, libc: Any, boundaries: Boundaries) -> None:
        self._libc = libc
        self._boundaries = boundaries

    def syscall(self, number: int, *arguments: Any) -> Any:
        if number == _MOVE_MOUNT:
            self._boundaries.at(f"{ON_DISK} before attaching {self._boundaries.plain(os.fsdecode(arguments[3]))}")
        return self._libc.syscall(number, *arguments)

    def umount2(self, place: bytes, flags: int) -> Any:
        self._boundaries.at(f"{ON_DISK} before detaching {self._boundaries.plain(os.fsdecode(place))}")
        return self._libc.umount2(place, flags)


def _whole(path: Any, folder: Any) -> str:
    """The absolute path: one that is removed together with its tree is given relative to its directory."""
    if isinstance(path, int):
        return ""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not text.startswith("/"):
        return f"{Path(f'/proc/self/fd/{folder}').readlink()}/{text}"
    return text


def _env_of(arguments: tuple[Any, ...]) -> str:
    for one in arguments:
        identity = getattr(one, "identity", one)
        if env := getattr(identity, "env", ""):
            return str(env)
    return ""


def _told(event: Event) -> str:
    env = getattr(event, "env", "")
    op = getattr(event, "op", "")
    return f"{type(event).__name__}{f'({op})' if op else ''}{f' of {env}' if env else ''}"
