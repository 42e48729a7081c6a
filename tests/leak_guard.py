"""What a test session must not leave behind: processes, mounts, temporary folders.

All that a session starts inherits a mark in its environment and a temporary folder of the session's own, so what is
found belongs to the session and to nobody else on the machine, and also a process whose parent was killed is found.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import psutil

MARK = "STATEFORK_TEST_SESSION"
GRACE_SECONDS = 10.0


class LeakGuard:
    """From the session's beginning to its end."""

    def __init__(self) -> None:
        self._outer_folder = tempfile.gettempdir()
        self._mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="sf-"))
        self.folder.chmod(0o711)  # private backends have users of their own, who must be able to go through
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", self._outer_folder)  # tmp_path stays where it was
        os.environ[MARK] = self._mark
        os.environ["TMPDIR"] = str(self.folder)
        tempfile.tempdir = str(self.folder)

    def end(self, tests_folder: Path | None) -> list[str]:
        """What is left, a line each. Processes are ended and the session's temporary folder is removed."""
        left = [f"process {describe}" for describe in self._end_processes()]
        roots = [self.folder, *([tests_folder] if tests_folder else [])]
        left += [f"mount {path}" for path in mounts() if any(path.is_relative_to(root.resolve()) for root in roots)]
        left += [f"temporary {path}" for path in sorted(self.folder.iterdir())]
        tempfile.tempdir = None
        os.environ["TMPDIR"] = self._outer_folder
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _end_processes(self) -> list[str]:
        _, alive = psutil.wait_procs(self._processes(), timeout=GRACE_SECONDS)
        named = [name for process in alive if (name := describe(process))]
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        return named

    def _processes(self) -> list[psutil.Process]:
        me = psutil.Process()
        found = {process.pid: process for process in me.children(recursive=True)}
        for process in psutil.process_iter():
            try:
                if process.pid != me.pid and process.environ().get(MARK) == self._mark:
                    found[process.pid] = process
            except psutil.Error:  # ended meanwhile, or not ours to look at
                continue
        return list(found.values())


def describe(process: psutil.Process) -> str:
    """Number and command of a process; empty when it has ended."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"{process.pid}: a zombie, {process.name()}"
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return ""


def mounts() -> list[Path]:
    """All mount points that this process sees."""
    table = Path("/proc/self/mounts")
    if not table.exists():
        return []
    lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [Path(line.split(" ")[1].replace("\\040", " ")) for line in lines]
