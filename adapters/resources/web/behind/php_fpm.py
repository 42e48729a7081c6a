"""PHP as a stack: one nginx and one php-fpm, with our hook before every script (``php/``)."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import signal
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.behind.base import READY_PATH, BehindStack
from statefork.adapters.resources.web.behind.forward import BOUND_HEADER, UnixConnection
from statefork.adapters.resources.web.behind.process import Tethered
from statefork.adapters.resources.web.behind.serving import fpm_configuration, nginx_configuration, prepend
from statefork.adapters.resources.web.behind.site import find_program
from statefork.adapters.resources.web.bound import Bound
from statefork.adapters.resources.web.stack import Setup

CONTROL_PATH = "/.statefork/control"
_CONTROL_S = 10.0
_SPARE_WORKERS = 1  # for the control script
_STEP_S = 0.0005
_STOPPED_S_MAX = 1.0


class PhpErrand:
    """A request, by a file that the process which has it keeps locked to the very end."""

    def __init__(self, header: str, file: Path) -> None:
        self.header = header
        self.file = file
        file.touch(mode=0o600)

    def wait(self, within_s: float | None) -> bool:
        """Wait for the lock: the process is through with the request, or dead."""
        if within_s is None:
            with self.file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
            return True
        give_up = time.monotonic() + within_s
        while (locked := self.is_locked()) and time.monotonic() < give_up:
            time.sleep(_STEP_S)
        return not locked

    def is_locked(self) -> bool:
        """Whether a process has it."""
        with self.file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def close(self) -> None:
        """Remove the file."""
        self.file.unlink(missing_ok=True)


class PhpFpmStack(BehindStack):
    """PHP scripts behind the server. A connection lives as long as its request, so there is nothing to close."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._slices: dict[str, list[str]] = {}  # nonce to what marks the entries that are the binding's
        self._socket: Path

    def start(self, setup: Setup) -> Path:
        """Write the configurations, and start both."""
        hint = self.site.install
        fpm = find_program("php-fpm", *(f"php-fpm8.{minor}" for minor in range(9, -1, -1)), hint=hint)
        nginx = find_program("nginx", hint=hint)
        for name in ("work", "cut", "tmp"):
            (self.run / name).mkdir()
        self._socket = self.run / "nginx.sock"
        (self.run / "prepend.php").write_text(prepend(self.run, self.key))
        configured = fpm_configuration(self.site, self.run, workers=setup.threads + _SPARE_WORKERS)
        (self.run / "fpm.conf").write_text(configured)
        (self.run / "nginx.conf").write_text(
            nginx_configuration(self.site, self.run, ready=READY_PATH, control=CONTROL_PATH)
        )
        root = ["--allow-to-run-as-root"] if os.geteuid() == 0 else []
        environment = {**os.environ, **self.site.environment}
        commands = (
            [fpm, "--nodaemonize", *root, "--fpm-config", str(self.run / "fpm.conf")],
            [nginx, "-p", str(self.run), "-e", "stderr", "-c", str(self.run / "nginx.conf")],
        )
        for command in commands:
            self.processes.append(Tethered(command, environment=environment, directory=self.run))
        return self._socket

    def begin(self, bound: Bound, nonce: str) -> PhpErrand:
        """The header says all that the request may reach."""
        number = next(self._numbers)
        identity = bound.identity
        stores = {kind: dict(address) for kind, address in bound.stores.items()}
        payload = {"nonce": nonce, "work": number, "env": identity.env, "epoch": identity.epoch, "stores": stores}
        return PhpErrand(self.signed(payload), self.run / "work" / f"{nonce}.{number}")

    def keep(self, bound: Bound, nonce: str) -> None:
        """Nothing is told in advance. Applications also name what they share by the database."""
        names = [str(address["name"]) for address in bound.stores.values() if "name" in address]
        self._slices[nonce] = [nonce, *names]

    def connections(self, nonce: str) -> int:
        """As many as there are requests at work, at most."""
        return len(self._at_work(nonce))

    def busy(self, nonce: str) -> str:
        """A request that is at work still."""
        return "a request is at work" if self._at_work(nonce) else ""

    def _at_work(self, nonce: str) -> list[Path]:
        found = []
        for file in (self.run / "work").glob(f"{nonce}.*"):
            with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
                if not _lock(opened.fileno()):
                    found.append(file)
        return found

    def close(self, nonce: str) -> None:
        """Each request closes its own."""

    def cut(self, nonce: str) -> None:
        """Let no request of it begin, and end the processes that are at one, whatever they do."""
        (self.run / "cut" / nonce).touch()
        killed = [file for file in self._at_work(nonce) if _kill_holder(file)]
        if killed:  # one of them may have held a lock of the memory that all share
            threading.Thread(target=self._ping, name="ping", daemon=True).start()

    def _ping(self) -> None:
        try:
            self._ask("ping")
        except (OSError, HTTPException, RuntimeError):
            self._died(-1)

    def drop(self, nonce: str) -> None:
        """Cut it off, and remove its slice of the shared memory. Without its file no request of it can begin later."""
        self.cut(nonce)
        self._ask("drop", slices=self._slices.pop(nonce, [nonce]))
        for file in (self.run / "work").glob(f"{nonce}.*"):
            file.unlink(missing_ok=True)
        (self.run / "cut" / nonce).unlink()

    def stats(self) -> dict[str, Any]:
        """Entries of the shared memory."""
        return {"behind": self._ask("stats"), "behind_pids": [process.pid for process in self.processes]}

    def holders(self, first: str, second: str) -> list[str]:
        """Entries of the shared memory: of a request that is over, PHP keeps nothing else."""
        return [str(key) for key in self._ask("holders", first=first, second=second)]

    def _ask(self, op: str, **arguments: str | list[str]) -> Any:
        """Have a worker carry something out. Raises OSError, RuntimeError."""
        connection = UnixConnection(str(self._socket), timeout=_CONTROL_S)
        body = json.dumps({"op": op, **arguments})
        with contextlib.closing(connection):
            connection.request("POST", CONTROL_PATH, body, {BOUND_HEADER: self.signed({"control": op})})
            response = connection.getresponse()
            said = response.read()
        if response.status != 200:
            raise RuntimeError(f"the control script answered {response.status}: {said[:300]!r}")
        return json.loads(said)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_holder(file: Path) -> bool:
    """Kill the process that has this request, and no other. Whether there was one.

    It is stopped first: what is stopped can't go on to somebody else's request between the look and the kill.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), file.open("rb") as opened:
        text = opened.read()
        if not text.isdigit():
            return False  # locked, and about to look whether it was cut off
        pid = int(text)
        os.kill(pid, signal.SIGSTOP)
        give_up = time.monotonic() + _STOPPED_S_MAX
        while _state(pid) not in "TtZX" and time.monotonic() < give_up:
            time.sleep(_STEP_S)
        if _lock(opened.fileno()):
            os.kill(pid, signal.SIGCONT)
            return False
        os.kill(pid, signal.SIGKILL)
        fcntl.flock(opened, fcntl.LOCK_EX)  # until it is gone
        return True
    return False


def _state(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
