"""Which sessions LISTEN. PostgreSQL tells that to each session of itself alone; on this machine it can be seen.

Up to version 18 a NOTIFY wakes every session of the same database that listens to anything, whatever the channel, and
no other. So one is sent on a channel that nobody uses, and the kernel tells who woke: a process that sleeps again has
given up the processor once more than before. A session may wake for another reason; one that wakes three times out of
three counts as listening. One that does not wake does not listen.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from statefork.adapters.resources.postgres.reading import Connection, run

_ROUNDS = 3
_SLEEP_S_MAX = 1.0
_WAKES_ALL_UNTIL = 190000  # newer servers wake those of the channel alone
_CREDENTIALS = struct.Struct("=iii")


def listening(connection: Connection, pids: Iterable[int]) -> frozenset[int] | None:
    """Those of some idle sessions of the connection's database that listen; None where that can't be seen."""
    suspects = set(pids)
    if not suspects:
        return frozenset()
    if not 0 < connection.info.server_version < _WAKES_ALL_UNTIL or not _is_local(connection):
        return None
    channel = f"statefork_{secrets.token_hex(8)}"
    for _ in range(_ROUNDS):
        before = {pid: _naps(pid) for pid in suspects}
        run(connection, "SELECT pg_catalog.pg_notify(%s, '')", channel)
        # None: it has ended (and listens no more), or it never came to rest (and may be listening)
        suspects = {pid for pid in suspects if _exists(pid) and (before[pid] is None or _naps(pid) != before[pid])}
        if not suspects:
            break
    return frozenset(suspects)


def _naps(pid: int) -> int | None:
    """How often a process that sleeps now has gone to sleep; None when it does not come to rest."""
    deadline = time.monotonic() + _SLEEP_S_MAX
    while True:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if facts["State"].startswith("S"):
            return int(facts["voluntary_ctxt_switches"])
        if time.monotonic() > deadline:
            return None
        os.sched_yield()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _is_local(connection: Connection) -> bool:
    """Whether the server's process numbers are those of this machine: nothing is concluded from a mere likeness."""
    if sys.platform != "linux":
        return False
    pid = connection.info.backend_pid
    try:
        facts = Path(f"/proc/{pid}/stat").read_text()
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        with socket.socket(fileno=os.dup(connection.fileno())) as door:
            if door.family == socket.AF_UNIX:
                peer, _, _ = _CREDENTIALS.unpack(
                    door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                )
                parent = int(facts.rpartition(")")[2].split()[1])
                return bool(parent == peer)  # who opened the door that we came through
            port = door.getsockname()[1]
    except OSError:
        return False
    return f"({port})".encode() in title and title.startswith(b"postgres:")
