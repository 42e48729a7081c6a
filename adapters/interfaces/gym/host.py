"""An engine in a process of its own, for environments in several processes: it ends when the last of them is gone.

Each of those holds a shared lock on a file; the kernel lets go of it when they end, however they do. This waits for the
exclusive one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from statefork.adapters.interfaces.gym.door import serving
from statefork.adapters.interfaces.gym.seats import clear
from statefork.adapters.interfaces.sync import open_engine


def users_of(state: Path) -> Path:
    """The file; it lies where it may before there is a journal."""
    return state / "logs" / "gym.users"


def host_of(state: Path) -> Path:
    """Another file, which this process locks as long as it lives."""
    return users_of(state).with_suffix(".host")


def main(contract: str, state: str, slots: str) -> None:
    """Serve until nobody holds the lock, or SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    alive = os.open(host_of(Path(state)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    users = os.open(users_of(Path(state)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open_engine(contract, state=state, slots=int(slots) or None) as engine:
        clear(engine)
        with serving(engine):
            fcntl.flock(users, fcntl.LOCK_EX)


def _leave(_: int, __: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
