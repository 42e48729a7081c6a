"""Sums of sealed layers, made behind the back of whoever seals: by them the audit finds a bit that was flipped later.

``layers/<id>/sums.json`` holds the SHA-256 of every file of the layer, by path; of a link, of its target. A seal does
not wait for it: a thread of low priority reads the layer afterwards. What is not done when the resource stops stays
without sums, and the audit says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from statefork.adapters.resources.ledger import write_whole

SUMS_NAME = "sums.json"
STOP_S = 2.0  # how long a stop waits for what was sealed last
_NICENESS = 10
_CHUNK_BYTES = 1 << 20


class Summing:
    """The thread of one resource; it runs only while there is something to do. ``place`` says where a layer lies."""

    def __init__(self, name: str, place: Callable[[str], Path]) -> None:
        self._name = name
        self._place = place
        self._wanted: deque[str] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def want(self, layers: Iterable[str]) -> None:
        """These layers are sealed. Never waits; those that have sums cost a look each."""
        with self._lock:
            self._wanted.extend(layers)
            if self._thread is None and self._wanted and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=f"sums of {self._name}", daemon=True)
                self._thread.start()

    def stop(self, deadline_s: float = STOP_S) -> None:
        """Finish what is wanted, if that can be done in time, and end the thread. It can be used again afterwards."""
        thread = self._thread
        if thread is not None:
            thread.join(deadline_s)
        with self._lock:
            self._stopping = True
        if thread is not None:
            thread.join()
        with self._lock:
            self._wanted.clear()
            self._stopping = False

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # of this thread alone; where that is not allowed it is as urgent as others
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._lock:
                if self._stopping or not self._wanted:
                    self._thread = None
                    return
                layer = self._wanted.popleft()
            with contextlib.suppress(OSError, _Stopped):  # the layer was collected, the disk is full: no sums
                self._sum(self._place(layer))

    def _sum(self, place: Path) -> None:
        if (place / SUMS_NAME).exists():
            return
        sums: dict[str, str] = {}
        for folder, folders, files in os.walk(place):
            for name in (*files, *folders):  # a link to a directory is among the directories
                path = Path(folder, name)
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    sums[path.relative_to(place).as_posix()] = self._file(path)
                elif stat.S_ISLNK(status.st_mode):
                    target = hashlib.sha256(os.fsencode(path.readlink()))
                    sums[path.relative_to(place).as_posix()] = f"link {target.hexdigest()}"
        write_whole(place / SUMS_NAME, msgspec.json.encode(sums))

    def _file(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
                if self._stopping:
                    raise _Stopped
        return digest.hexdigest()


class _Stopped(Exception):
    """The resource stops: what is not summed stays so."""
