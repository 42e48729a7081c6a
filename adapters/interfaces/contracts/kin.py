"""Which processes belong to a run: this one's descendants, and whoever bears the run's mark in its environment.

They are looked at again and again by a thread, since a process that has ended can't be asked whose it was.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec
import psutil

from statefork.adapters.resources.process.keeper import descendants
from statefork.adapters.resources.process.standing import Who, who

MARK_VARIABLE = "STATEFORK_DISCOVERY"
LOOK_EVERY_S = 0.05


class Connection(msgspec.Struct, frozen=True, order=True):
    """Somebody of the run talks to an address that nobody of the run listens at."""

    address: str
    port: int
    program: str


class Kin:
    """Look from ``begin`` to ``end``."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK_VARIABLE}={mark}".encode()
        self._known: dict[int, str] = {}  # by process number: its program
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="statefork-kin", daemon=True)
        self._spoken: set[tuple[Connection, int]] = set()  # with the port at our side
        self._listening: set[int] = set()

    def begin(self) -> None:
        """Start looking."""
        self._look()
        self._thread.start()

    def end(self) -> None:
        """Stop. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def program(self, pid: int) -> str | None:
        """The program of a process, if it is of the run; None for others, and for those that were never seen."""
        with self._lock:
            if pid in self._known:
                return self._known[pid]
        if pid == os.getpid() or self._bears_the_mark(pid) or self._has_a_parent(pid):
            return self._remember(pid)
        return None

    def _has_a_parent(self, pid: int) -> bool:
        """Whether its parent is of the run: of one that has just ended that is told, and its environment is not."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            with self._lock:
                return parent == os.getpid() or parent in self._known
        return False

    def left(self) -> list[Who]:
        """Those that bear the mark and live: the run's own command started them, and did not end them."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and self._bears_the_mark(int(entry.name)):
                process = who(int(entry.name))
                if process.lives:
                    found.append(process)
        return found

    def connections(self) -> list[Connection]:
        """Whom the run talked to, beside itself."""
        ours = self._listening
        return sorted({one for one, port in self._spoken if one.port not in ours and port not in ours})

    def _bears_the_mark(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def _remember(self, pid: int) -> str:
        name = "?"
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        with self._lock:
            return self._known.setdefault(pid, name)

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        for pid in descendants(os.getpid()):
            program = self._remember(pid)
            with contextlib.suppress(psutil.Error):
                for found in psutil.Process(pid).net_connections(kind="tcp"):
                    if found.status == psutil.CONN_LISTEN:
                        self._listening.add(found.laddr.port)
                    elif found.status == psutil.CONN_ESTABLISHED and found.raddr:
                        connection = Connection(found.raddr.ip, found.raddr.port, program)
                        self._spoken.add((connection, found.laddr.port))
        with contextlib.suppress(psutil.Error):
            for found in psutil.Process().net_connections(kind="tcp"):
                if found.status == psutil.CONN_LISTEN:
                    self._listening.add(found.laddr.port)
