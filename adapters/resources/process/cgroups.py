"""Leaves of the control-group tree (version 2): a set of processes that is frozen, and killed, at one blow.

A leaf stands beside the engine in the engine's own group, so that the limits which hold for the engine hold for it.
Whether leaves can be had is found out by doing it, with a child: the files may be there and the right to move a
process into them may not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_TRY_S_MAX = 2.0
_LOOK_AGAIN_S = 0.001


class Leaf:
    """One group. All methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self, processes_max: int = 0) -> None:
        """Idempotent. Raises OSError; also where the number of processes is to be limited and can't be."""
        self.path.mkdir(exist_ok=True)
        if processes_max and self.limits_processes:
            (self.path / "pids.max").write_text(str(processes_max))

    @property
    def limits_processes(self) -> bool:
        """Whether it can hold a limit of processes."""
        return (self.path / "pids.max").exists()

    def processes(self) -> list[int]:
        """Everything in it; nothing where it is gone."""
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def freeze(self, *, on: bool, within_s: float) -> bool:
        """Stop everything in it, or let it go on; whether that was done in time."""
        (self.path / "cgroup.freeze").write_text("1" if on else "0")
        return self._comes("frozen", on, within_s) if on else True

    def kill(self, *, within_s: float) -> bool:
        """End everything in it, frozen or not; whether it is empty now. Idempotent."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except FileNotFoundError:
            return True
        return self._comes("populated", False, within_s)

    def remove(self, *, within_s: float = 2.0) -> None:
        """Idempotent; it stays while there is something in it. What has just been killed is in the way for a moment."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY and not self._fact("populated") and time.monotonic() < deadline:
                    time.sleep(_LOOK_AGAIN_S)
                    continue
            return

    def _comes(self, fact: str, wanted: bool, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self._fact(fact) != wanted:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def _fact(self, name: str) -> bool:
        try:
            return f"{name} 1" in (self.path / "cgroup.events").read_text().splitlines()
        except FileNotFoundError:
            return False


def leaves_below(parent: Path, beginning: str) -> list[Leaf]:
    """The leaves whose names begin so."""
    with contextlib.suppress(OSError):
        return [Leaf(path) for path in sorted(parent.glob(f"{beginning}*"))]
    return []


@functools.lru_cache(maxsize=1)
def parent_of_leaves() -> tuple[Path | None, str]:
    """Where this process may make leaves, or None and why not. Tried once, with a child."""
    found = _own_group()
    if found is None:
        return None, "there is no control-group tree of version 2 here"
    leaf = Leaf(found / f"statefork-trial-{os.getpid()}-{secrets.token_hex(3)}")
    try:
        leaf.make()
        return (found, "") if _holds_a_child(leaf) else (None, f"what is put into a leaf of {found} can't be frozen")
    except OSError as error:
        return None, f"no leaf can be made in {found}: {error.strerror}"
    finally:
        leaf.remove()


def _holds_a_child(leaf: Leaf) -> bool:
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, cwd="/")
    try:
        (leaf.path / "cgroup.procs").write_text(str(child.pid))
        return leaf.freeze(on=True, within_s=_TRY_S_MAX) and leaf.kill(within_s=_TRY_S_MAX)
    finally:
        child.kill()
        child.wait()


def _own_group() -> Path | None:
    """The directory of the group that this process is in."""
    with contextlib.suppress(OSError):
        own = next(line[3:].strip() for line in _OWN.read_text().splitlines() if line.startswith("0::"))
        for root, point in _trees():
            if own == root or own.startswith(root.rstrip("/") + "/"):
                return Path(point) / own[len(root) :].lstrip("/")
    return None


def _trees() -> Iterator[tuple[str, str]]:
    for line in _MOUNTS.read_text().splitlines():
        fields = line.split(" ")
        if fields[fields.index("-") + 1] == "cgroup2":
            yield fields[3], fields[4]
