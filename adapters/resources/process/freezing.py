"""Holding a tree of processes still where there is no cgroup leaf: SIGSTOP, until a look finds nobody who runs.

What is forked between a look and the signal is found by the next look: a process that is stopped forks no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from statefork.adapters.resources.process.standing import Who, who

_LOOK_AGAIN_S = 0.001
_STOPPED = frozenset("tTZX")


def stop_all(found: Callable[[], Iterable[int]], *, within_s: float) -> tuple[list[Who], list[int]]:
    """Stop every process that ``found`` lists; those that were stopped by this, and those that could not be."""
    stopped: dict[int, Who] = {}
    deadline = time.monotonic() + within_s
    while True:
        running = [pid for pid in found() if _state(pid) not in _STOPPED]
        if not running:
            return list(stopped.values()), []
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                stopped.setdefault(pid, who(pid))
                os.kill(pid, signal.SIGSTOP)
        if time.monotonic() > deadline:
            return list(stopped.values()), running
        time.sleep(_LOOK_AGAIN_S)


def go_on(stopped: Iterable[Who]) -> None:
    """Undo it."""
    for process in stopped:
        if process.lives:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGCONT)


def _state(pid: int) -> str:
    """One letter; ``X`` when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"
