"""Running psql, pg_dump and pg_restore: without a password in a command line, waited for to their real end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psycopg

from statefork.adapters.resources.postgres import launch
from statefork.adapters.resources.postgres.binaries import Programs, account_for, can_reach, shown_for
from statefork.adapters.resources.reflink import Pulse

_PULSE_S = 0.1
_SAID_BYTES_MAX = 64 << 10
_END_S_MAX = 5.0
_BARE = frozenset({"PATH", "LANG", "LANGUAGE", "LD_LIBRARY_PATH"})
_FILES = ("PGSSLCERT", "PGSSLKEY", "PGSSLROOTCERT", "PGSSLCRL")


class Program:
    """One run. What it says of errors is kept; its end is waited for, and it is ended where the body fails."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: dict[str, str],
        *,
        feed: bool = False,
        unprivileged: bool = False,
    ) -> None:
        """``unprivileged``: not as root (see :func:`_dropped`)."""
        self._name = Path(command[0]).name
        self._errors = tempfile.TemporaryFile(prefix="statefork-")  # noqa: SIM115 # closed with the program
        try:
            self.process = subprocess.Popen(
                _dropped(list(map(str, command)), environment) if unprivileged else list(map(str, command)),
                stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if feed else subprocess.PIPE,
                stderr=self._errors,
                env=environment,
            )
        except BaseException:
            self._errors.close()
            raise

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._errors.close()

    def failed(self, pulse: Pulse) -> bool:
        """Wait for its end, calling ``pulse`` meanwhile; whether it failed."""
        while True:
            try:
                return self.process.wait(_PULSE_S) != 0
            except subprocess.TimeoutExpired:
                pulse()

    def end(self) -> None:
        """End it if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self) -> str:
        """The end of its error output."""
        size = os.fstat(self._errors.fileno()).st_size
        data = os.pread(self._errors.fileno(), _SAID_BYTES_MAX, max(0, size - _SAID_BYTES_MAX))
        return data.decode(errors="replace").strip() or f"{self._name} ended with {self.process.returncode}"


def environment(dsn: str, *, settings: Mapping[str, str] | None = None, bare: bool = False) -> dict[str, str]:
    """What libpq's programs need in order to connect where ``dsn`` leads, in sessions with ``settings``.

    ``bare``: of our own variables those about languages and libraries only.
    """
    wanted = {name: text for name, text in os.environ.items() if not bare or name in _BARE or name.startswith("LC_")}
    for option in psycopg.pq.Conninfo.get_defaults():
        if option.envvar:
            wanted.pop(option.envvar.decode(), None)
    for option in psycopg.pq.Conninfo.parse(dsn.encode()):
        if option.val is not None and option.envvar:
            wanted[option.envvar.decode()] = option.val.decode()
    words = [f"-c {name}={_escaped(value)}" for name, value in (settings or {}).items()]
    if words:
        wanted["PGOPTIONS"] = " ".join([*filter(None, [wanted.get("PGOPTIONS")]), *words])
    wanted["PGAPPNAME"] = "statefork"
    return wanted


def _dropped(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """The command as the account that the server's start drops to, where we are root; ours else.

    An encrypted connection that needs files which perhaps only root can read stays with root.
    """
    account = account_for()
    if account is None or any(environment.get(name) for name in _FILES) or "verify" in environment.get("PGSSLMODE", ""):
        return command
    program = Path(command[0])
    shown = {directory.name: directory for directory in shown_for(program.parent)}
    words = [Programs(program.parent, 0, tuple(shown.values())).word(program.name), *command[1:]]
    if (host := environment.get("PGHOST", "")).startswith("/"):
        shown["socket"] = Path(host)
        words[1:1] = ["-h", "{socket}"]
    plan = {
        "command": words,
        "shown": {name: str(directory) for name, directory in shown.items()},
        "hidden": not all(can_reach(account, directory) for directory in shown.values()),
        "uid": account.uid,
        "gid": account.gid,
        "tethered": False,
        "preload": "",
    }
    return [sys.executable, "-I", str(launch.__file__), json.dumps(plan)]


def _escaped(value: str) -> str:
    """As one word of PGOPTIONS."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
