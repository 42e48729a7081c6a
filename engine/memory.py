"""What processes cost in memory, counted honestly.

PSS (proportional set size, ``/proc/<pid>/smaps_rollup``) divides each shared page among those who share it, so that the
sum over a process tree is what the machine spends on it; a sum of resident sizes counts shared pages once for each.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def process_pss(pid: int) -> int:
    """Bytes of one process; 0 when it is gone, or is not this user's."""
    try:
        text = (Path("/proc") / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it, as far as their parents still live."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def tree_pss(pid: int | None) -> tuple[int, int]:
    """How many processes a tree has, and the sum of their PSS in bytes. None: this process alone, without children."""
    if pid is None:
        return 1, process_pss(os.getpid())
    pids = process_tree(pid)
    return len(pids), sum(process_pss(each) for each in pids)
