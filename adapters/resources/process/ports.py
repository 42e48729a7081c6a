"""Ports for commands: free ones, no two alike, and whose a listening port really is.

A port is told to a command by number, so between the choice and the command's bind anybody may take it. It is chosen
outside of the range from which the kernel gives ports to whoever asks for any, so that in practice nobody does; and a
backend counts as ready only when a process of its own listens there. A request never reaches another's process.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

HOST = "127.0.0.1"
_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST_ANY = 32_768  # where the kernel's own range begins, unless it was changed
_TRIES = 200


class Ports:
    """The ports given out in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: set[int] = set()

    def take(self) -> int:
        """A port that is free now, and that nobody else gets until ``give_back``. Raises OSError where none is."""
        last = _first_of_any() - 1
        with self._lock:
            for _ in range(_TRIES):
                port = _FIRST + secrets.randbelow(max(1, last - _FIRST))
                if port not in self._given and is_free(port):
                    self._given.add(port)
                    return port
        raise OSError(98, "no free port was found")

    def give_back(self, port: int) -> None:
        """It may be taken again. Idempotent."""
        with self._lock:
            self._given.discard(port)


PORTS = Ports()


def _first_of_any() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return max(_FIRST + 1_000, int(_RANGE.read_text().split()[0]))
    return _USUAL_FIRST_ANY


def is_free(port: int) -> bool:
    """Whether nobody has a port now, at any address."""
    with socket.socket() as trial:
        try:
            trial.bind(("", port))  # at every address: a command may listen at all of them
        except OSError:
            return False
    return True


def is_taken(port: int) -> bool:
    """Whether somebody listens at a port. What a connection that was closed leaves for a while does not count."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return True
    return False


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of the processes listens at a port."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for found in psutil.Process(pid).net_connections(kind="tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port:
                    return True
    return False
