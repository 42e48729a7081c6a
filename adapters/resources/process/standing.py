"""What is on disk of a backend that runs, so that another engine finds it and ends it: ``branches/<id>/process.json``.

It is written before the keeper starts and again when its number is known. A process is named by its number *and* the
moment it started, which no other has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from statefork.adapters.resources.ledger import write_whole
from statefork.adapters.resources.process.cgroups import Leaf
from statefork.adapters.resources.process.keeper import descendants
from statefork.engine.runtimes import end_marked

NAME = "process.json"
END_S_MAX = 10.0
_LOOK_AGAIN_S = 0.005


class Who(msgspec.Struct, frozen=True):
    """One process, for ever. Pid 0: none."""

    pid: int = 0
    ticks: int = 0  # when it started, since boot

    @property
    def lives(self) -> bool:
        """Whether it is there, and no zombie."""
        return bool(self.pid) and started(self.pid) == self.ticks != 0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One backend that runs, or was about to."""

    engine: Who
    keeper: Who = Who()
    leaf: str = ""  # the directory of its cgroup leaf
    marks: dict[str, str] = {}  # in the environment of its processes, unless they wiped it
    port: int = 0


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def who(pid: int) -> Who:
    """A process that runs now."""
    return Who(pid, started(pid))


def put_standing(workplace: Path, standing: Standing) -> None:
    """Record it."""
    workplace.mkdir(parents=True, exist_ok=True)
    write_whole(workplace / NAME, msgspec.json.encode(standing))


def find_standing(workplace: Path) -> Standing | None:
    """The record, if there is one that can be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((workplace / NAME).read_bytes(), type=Standing)
    return None


def end_standing(workplace: Path, *, kept: bool = False) -> None:
    """End what runs in a branch, whoever started it, and forget the record. Idempotent.

    ``kept``: its keeper has ended in order, so that nothing is below it any more.
    """
    standing = find_standing(workplace)
    if standing is not None:
        if standing.keeper.lives:
            _end_below(standing.keeper)
        elif not kept and standing.marks:
            end_marked(standing.marks)
        if standing.leaf:
            leaf = Leaf(Path(standing.leaf))
            leaf.kill(within_s=END_S_MAX)
            leaf.remove()
    (workplace / NAME).unlink(missing_ok=True)


def _end_below(keeper: Who) -> None:
    """The keeper last: while it lives, whatever is orphaned comes to it."""
    deadline = time.monotonic() + END_S_MAX
    while keeper.lives and time.monotonic() < deadline:
        below = descendants(keeper.pid)
        for pid in below or (keeper.pid,):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_AGAIN_S)


def end_leftovers(branches: Path) -> int:
    """End the backends whose engine is gone; how many there were."""
    ended = 0
    for path in sorted(branches.glob(f"*/{NAME}")):
        standing = find_standing(path.parent)
        if standing is None or not standing.engine.lives:
            end_standing(path.parent)
            ended += 1
    return ended
