"""PostgreSQL as statefork's own resident server: started, started again when it dies, never left behind.

::

    resources/<name>/server/          or a place of an environment's own, see private.py
      data/      the server's data directory
      run/       its socket, where the path is short enough for one; else it listens on the loopback address
      secret     the superuser's password, readable by the engine's user alone

Several resource objects of one process may share a server; the last one that lets go stops it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from statefork.adapters.resources.ledger import remove_tree, sync_file_system, write_whole
from statefork.adapters.resources.postgres import launch
from statefork.adapters.resources.postgres.accelerator import Accelerator
from statefork.adapters.resources.postgres.binaries import account_for, can_reach, server_programs
from statefork.adapters.resources.postgres.configuration import (
    OWN_DATABASE,
    SUPERUSER,
    access_rules,
    fitting,
    initdb_options,
    set_up_base,
)
from statefork.adapters.resources.postgres.connecting import Address, connect
from statefork.adapters.resources.postgres.leftovers import end_processes_in, is_shut_down
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.postgres.room import Reserve, is_short
from statefork.adapters.resources.postgres.setup import Setup
from statefork.adapters.resources.postgres.ways import too_old
from statefork.adapters.resources.reflink import ReflinkProbe, probe_reflink
from statefork.engine.errors import ResourceFailed, RuntimeDied
from statefork.engine.runtimes import end_marked, forget_process, log_tail, record_process, rotate

__all__ = ["EmbeddedServer", "Setup"]

START_S_MAX = 60.0
STOP_S_MAX = 20.0
_POLL_S = 0.01
_SOCKET_BYTES_MAX = 100
_PORT = 5432
_LOOPBACK = "127.0.0.1"
_RESTARTS_MAX = 5
_UPTIME_S = 10.0
_FULL_S = 0.5


class EmbeddedServer:
    """One server. ``acquire`` and ``release`` block: call them from worker threads."""

    own = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.data = setup.place / "data"
        self.log = setup.log or setup.state / "logs" / f"{setup.name}.log"
        self._life = threading.RLock()
        self.making = Making()
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure: ResourceFailed | None = None
        self._host, self._port = "", 0
        self.accelerator = Accelerator(setup.place, wanted=setup.accelerate)
        self._reserve = Reserve(self.data)
        self._reserved: socket.socket | None = None  # keeps the port ours

    # -- use --------------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Run, for one more user. Raises ResourceFailed with the end of the log."""
        with self._life:
            if self._users == 0:
                self._begin()
            self._users += 1

    def release(self) -> None:
        """One user less; the last one stops the server."""
        with self._life:
            if self._users == 0:
                return
            self._users -= 1
            if self._users:
                return
            watcher = self._finish()
        if watcher is not None:
            watcher.join()

    def halt(self) -> None:
        """Stop the server, whoever uses it. Idempotent."""
        with self._life:
            if self._users:
                self._users = 1
        self.release()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Shut down in order while the body runs; afterwards it runs again, at the same address.

        Raises ResourceFailed where it did not end in order, or does not come again.
        """
        with self._life:
            self.check()
            self._stopping.set()
            self._watcher = None  # it ends when we let go of the lock
            self._end()
            try:
                if not is_shut_down(self.data):
                    raise self._failed("it did not shut down in order", log_tail(self.log))
                yield
            finally:
                try:
                    self._go()
                except ResourceFailed as failure:
                    self._failure = failure
                    raise

    def address(self) -> Address:
        """How the superuser connects."""
        return {**self.door(), "user": SUPERUSER, "password": self._secret(), "dbname": OWN_DATABASE}

    def door(self) -> dict[str, str | int]:
        """Host and port; they stay the same when the server is started again."""
        return {"host": self._host, "port": self._port}

    def data_directory(self) -> Path | None:
        """The data directory, to look at."""
        return self.data

    def look_ahead(self) -> ReflinkProbe:
        """Whether clones will share their extents, tried where the data directory is or would be."""
        programs = server_programs(self.setup.programs)
        account_for(self.data)
        if not programs.clone:
            return too_old(programs.version)
        base = self.data / "base"
        return probe_reflink(base if base.is_dir() else self.setup.place)

    def process_ids(self) -> tuple[int, ...]:
        """The server's process and its children."""
        process = self._process
        if process is None:
            return ()
        with contextlib.suppress(OSError):  # ended just now, or a kernel that does not tell children
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            return (process.pid, *map(int, children.split()))
        return (process.pid,)

    def acceleration(self) -> str:
        """Whether clones are made by our own library (see accelerator.py)."""
        return str(self.accelerator)

    def check(self) -> None:
        """Raise RuntimeDied where the server died so often that it was given up."""
        if self._failure is not None:
            raise RuntimeDied(self._failure.message, hint=self._failure.hint, resource=self.setup.name)
        if self.setup.reserve:
            self._reserve.keep()

    # -- life -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._failure = None
        place = self.setup.place
        place.mkdir(parents=True, exist_ok=True)
        end_processes_in(self.data)
        if not (self.data / "PG_VERSION").exists() or not (place / "secret").exists():
            self._initialise()
        self._host, self._port = self._choose_door()
        try:
            self._go()
        except BaseException:
            self._free_port()
            raise

    def _go(self) -> None:
        """Start it, and somebody who starts it again."""
        self._stopping = threading.Event()
        self._start()
        self._watcher = threading.Thread(
            target=self._watch, args=(self._stopping,), name=f"postgres {self.setup.name}", daemon=True
        )
        self._watcher.start()

    def _initialise(self) -> None:
        """A new cluster. Half of one, which a killed engine left, is removed first."""
        remove_tree(self.data)
        password = self.setup.place / "password"
        programs = server_programs(self.setup.programs)
        self.data.mkdir(mode=0o700)
        secret = secrets.token_hex(24)
        try:
            password.touch(mode=0o600)
            password.write_text(secret)
            account = account_for(self.data)
            if account is not None:
                for path in (self.data, password):
                    os.chown(path, account.uid, account.gid)
            command = [programs.word("initdb"), "-D", "{server}/data", "-U", SUPERUSER]
            command += ["--pwfile={server}/password", *initdb_options(programs.version), *self.setup.initdb]
            done = subprocess.run(self._plan(command), capture_output=True, text=True, check=False, env=_environment())
        finally:
            password.unlink(missing_ok=True)
        if done.returncode:
            remove_tree(self.data)
            raise self._failed("a new data directory could not be made", done.stderr.strip())
        (self.data / "pg_hba.conf").write_text(access_rules())
        set_up_base(self.data / "base")
        if self.setup.settings.get("fsync") == "on":
            sync_file_system(self.data)
        write_whole(self.setup.place / "secret", secret.encode())
        (self.setup.place / "secret").chmod(0o600)

    def _choose_door(self) -> tuple[str, int]:
        run = self.setup.place.resolve() / "run"
        if len(os.fsencode(run)) <= _SOCKET_BYTES_MAX - len(f"/.s.PGSQL.{_PORT}.lock"):
            run.mkdir(mode=0o755, exist_ok=True)
            if (account := account_for(self.data)) is not None:
                os.chown(run, account.uid, account.gid)
            return str(run), _PORT
        # Nobody else is given a port that is bound, and the server may still listen at it: both say SO_REUSEADDR.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((_LOOPBACK, 0))
        return _LOOPBACK, int(self._reserved.getsockname()[1])

    def _free_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _start(self) -> None:
        """One life of the process: returns when it answers."""
        by_socket = self._host.startswith("/")
        programs = server_programs(self.setup.programs)
        settings = {
            **fitting(self.setup.settings, programs.version),
            "listen_addresses": "" if by_socket else self._host,
            "unix_socket_directories": "{server}/run" if by_socket else "",
            "port": str(self._port),
        }
        command = [programs.word("postgres"), "-D", "{server}/data"]
        command += [f"--{name}={value}" for name, value in settings.items()]
        for left in (self.data / "postmaster.pid", *(self.setup.place / "run").glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)  # nobody runs here: that was made sure of; a zombie's locks would bar the way
        rotate(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._plan(command, tethered=True, preload=self.accelerator.preload()),
                stdin=subprocess.PIPE,  # the tether
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_environment(), **self.setup.marks},
            )
        record_process(self.setup.state, self.setup.journal, self.setup.name, self._process.pid, "postgres")
        try:
            self._wait_until_it_answers(self._process)
            self.accelerator.look(self._process.pid)
            self.check()
        except BaseException:
            self._end()
            raise

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while process.poll() is None:
            try:
                connect(self.setup.name, self.address()).close()
            except ResourceFailed as error:
                if time.monotonic() >= deadline:
                    raise self._failed(f"it did not answer within {START_S_MAX:g} s", error.message) from error
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            else:
                return
        raise self._failed(f"it ended with code {process.returncode} while it started", log_tail(self.log))

    def _watch(self, stopping: threading.Event) -> None:
        """Start it again whenever it dies; where its disk is full, as often as it takes."""
        quick = 0
        while True:
            began = time.monotonic()
            if (process := self._process) is not None:
                process.wait()
            if is_short(self.data):
                self._reserve.lend()
                stopping.wait(_FULL_S)
            with self._life:
                if stopping.is_set():
                    return
                if process is not None:
                    quick = quick + 1 if time.monotonic() - began < _UPTIME_S else 1
                    self._clear(process)
                try:
                    if quick > _RESTARTS_MAX and not is_short(self.data):
                        raise self._failed(f"it died {quick} times in a row", log_tail(self.log))
                    self._start()
                except ResourceFailed as failure:
                    if not is_short(self.data):
                        self._failure = failure
                        return

    def _finish(self) -> threading.Thread | None:
        """End it for good; the thread that is to be joined when the lock is free."""
        self._stopping.set()
        watcher, self._watcher = self._watcher, None
        self._end()
        self._free_port()
        return watcher

    def _end(self) -> None:
        """Stop it in order; let go of the tether; join whatever is left."""
        process, self._process = self._process, None
        if process is None:
            return
        for number, seconds in ((signal.SIGINT, STOP_S_MAX), (signal.SIGQUIT, STOP_S_MAX / 4), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        self._clear(process)
        forget_process(self.setup.state, self.setup.name)

    def _clear(self, process: subprocess.Popen[bytes]) -> None:
        """After the server's own process has ended: its tether, its children, whatever it started."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ended\n")
            process.stdin.close()
        end_processes_in(self.data)
        end_marked(self.setup.marks)

    # -- helpers ----------------------------------------------------------------------------------------------

    def _plan(self, command: list[str], *, tethered: bool = False, preload: str = "") -> list[str]:
        account = account_for(self.data)
        shown = {directory.name: directory for directory in server_programs(self.setup.programs).shown}
        shown["server"] = self.setup.place.resolve()
        hidden = account is not None and not all(can_reach(account, directory) for directory in shown.values())
        plan = {
            "command": command,
            "shown": {name: str(directory) for name, directory in shown.items()},
            "hidden": hidden,
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "tethered": tethered,
            "preload": f"{{server}}/{preload}" if preload else "",
        }
        return [sys.executable, "-I", str(launch.__file__), json.dumps(plan)]

    def _secret(self) -> str:
        return (self.setup.place / "secret").read_text()

    def _failed(self, what: str, said: str) -> ResourceFailed:
        return ResourceFailed(
            f"{self.setup.name}: statefork's own PostgreSQL server can't run: {what}",
            hint=f"It says:\n{said}" if said else f"Its log is {self.log}",
            resource=self.setup.name,
        )


def _environment() -> dict[str, str]:
    """Ours, without what would lead PostgreSQL's programs somewhere else."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
