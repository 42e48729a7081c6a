"""Whether an engine has the state directory open, found without disturbing it: nothing here takes its lock."""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack
from pathlib import Path

from statefork.replay.audit.source import JOURNAL_FILE, connected

_LOCKS = Path("/proc/locks")  # "1: FLOCK  ADVISORY  WRITE 4711 fd:01:123456 0 EOF"


def engine_of(state: Path) -> int:
    """The pid of the process that has the state directory open for writing; 0 when none has."""
    try:
        status = (state / "lock").stat()
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and fields[5:6] == [wanted]:
                return int(fields[4])
    except OSError:
        return 0
    return 0


def moved_on(state: Path, env: str, position: int) -> bool:
    """Whether anything was journaled of an environment's lifecycle behind a position. True where that can't be read."""
    query = "select 1 from events where stream = ? and position > ? limit 1"
    try:
        with ExitStack() as stack:
            journal = connected(state / JOURNAL_FILE, stack)
            stack.callback(journal.close)
            return journal.execute(query, (f"env/{env}", position)).fetchone() is not None
    except (OSError, sqlite3.Error):
        return True
