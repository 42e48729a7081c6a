"""Valkey (or Redis) as statefork's own resident server: started, started again when it dies, never left behind.

::

    resources/<name>/server/
      data/      the append-only file, where contents are kept: what it holds outlives the server, not the engine
      socket     where the path is short enough for one; else it listens on the loopback address

Its configuration comes through standard input, so that no secret stands in a file or on a command line. It is tethered
to the engine like every other runtime (see engine.runtimes).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from redis import exceptions

from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.valkey.asking import ADMIN, Admin, Door
from statefork.adapters.resources.valkey.options import Options
from statefork.engine.errors import MissingDependency, ResourceFailed, RuntimeDied
from statefork.engine.runtimes import TETHER, end_marked, forget_process, log_tail, marks, record_process, rotate

_logger = logging.getLogger(__name__)
PROGRAMS = ("valkey-server", "redis-server")
START_S_MAX = 30.0
STOP_S_MAX = 3.0
_POLL_S = 0.005
_SOCKET_BYTES_MAX = 100
_RESTARTS_MAX = 5
_UPTIME_S = 10.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Which server to run, and where."""

    name: str
    state: Path
    journal: str
    place: Path
    options: Options
    kept: bool  # whether contents are sealed: they must then outlive the server's own death, and be watched


def find_program(wanted: str = "") -> str:
    """The server's program. Raises MissingDependency."""
    for name in (wanted,) if wanted else PROGRAMS:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")
        if found:
            return found
    raise MissingDependency(
        f"there is no {wanted or ' and no '.join(PROGRAMS)} on this machine",
        hint="Debian: apt-get install valkey-server (or redis-server)",
    )


class ValkeyServer:
    """One server. ``acquire`` and ``release`` block: call them from worker threads."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.log = setup.state / "logs" / f"{setup.name}.log"
        self.came: list[Callable[[], None]] = []  # called when it answers again after it had died
        self._life = threading.RLock()
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._tether = -1
        self._secret = ""
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure: ResourceFailed | None = None
        self._answering: tuple[subprocess.Popen[bytes] | None, float] = (None, 0.0)  # and since when
        self._stuck = False  # we killed it: that it died says nothing of it
        self._door: Door = {}

    # -- use --------------------------------------------------------------------------------------------------

    def acquire(self) -> Admin:
        """Run, for one more user; a way to ask it. Raises ResourceFailed with the end of the log."""
        with self._life:
            if self._users == 0:
                self._begin()
            self._users += 1
            return self._admin()

    def release(self) -> None:
        """One user less; the last one stops the server."""
        with self._life:
            self._users -= 1
            if self._users:
                return
            self._stopping.set()
            watcher, self._watcher = self._watcher, None
            self._end()
        if watcher is not None:
            watcher.join()
        remove_tree(self.setup.place)

    def door(self) -> Door:
        """Where clients connect; it stays the same when the server is started again."""
        return dict(self._door)

    def process_ids(self) -> tuple[int, ...]:
        """The server's process."""
        process = self._process
        return (process.pid,) if process is not None else ()

    @property
    def used(self) -> bool:
        """Whether anybody has acquired it."""
        return self._users > 0

    @property
    def given_up(self) -> str:
        """Why it will never answer again; empty while it may."""
        return self._failure.message if self._failure is not None else ""

    def wait(self) -> None:
        """Return when no start is under way. Raises RuntimeDied where it was given up."""
        with self._life:
            if self._failure is not None:
                raise RuntimeDied(self._failure.message, hint=self._failure.hint, resource=self.setup.name)

    def end_stuck(self, since: float) -> None:
        """Kill a server that was there at a time of the monotonic clock; return when the next one answers.

        Takes no lock: who calls may hold one that is needed before a start is complete.
        """
        process, began = self._answering
        if process is not None and began <= since:
            _logger.warning("%s: a script that has written does not end: the server is started again", self.setup.name)
            self._stuck = True
            process.kill()
        deadline = time.monotonic() + START_S_MAX
        while self._answering[1] <= since and self._failure is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _admin(self) -> Admin:
        return Admin(self._door, self._secret, self.end_stuck)

    # -- life -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._stopping = threading.Event()
        self._failure = None
        self._secret = secrets.token_hex(24)
        place = self.setup.place
        remove_tree(place)  # of an earlier engine, whose environments have moved on to other namespaces
        (place / "data").mkdir(parents=True, mode=0o700)
        path = place.resolve() / "socket"
        if len(os.fsencode(path)) <= _SOCKET_BYTES_MAX:
            self._door = {"path": str(path)}
        else:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                self._door = {"host": "127.0.0.1", "port": int(taken.getsockname()[1])}
        self._start()
        name = f"valkey {self.setup.name}"
        self._watcher = threading.Thread(target=self._watch, args=(self._stopping,), name=name, daemon=True)
        self._watcher.start()

    def _configuration(self) -> str:
        options, kept = self.setup.options, self.setup.kept
        digest = hashlib.sha256(self._secret.encode()).hexdigest()
        door = self._door
        lines = [
            f'unixsocket "{door["path"]}"\nunixsocketperm 700\nport 0' if "path" in door else "",
            f"bind 127.0.0.1\nport {door['port']}" if "port" in door else "",
            f'dir "{self.setup.place.resolve() / "data"}"',
            "databases 1",
            "daemonize no",
            "set-proc-title no",  # it would overwrite the marks in the environment
            'save ""',
            f"appendonly {'yes' if kept else 'no'}",
            f"appendfsync {'always' if options.survives == 'os' else 'no'}",
            "notify-keyspace-events KA" if kept else "",
            f"maxmemory {options.max_memory}",
            f"maxmemory-policy {'noeviction' if kept else 'allkeys-lru'}",
            "lua-time-limit 1000",  # ms, until others are told that a script goes on and on
            "client-output-buffer-limit pubsub 256mb 64mb 60",
            "user default off",
            f"user {ADMIN} on #{digest} ~* &* +@all",
        ]
        return "\n".join(lines) + "\n"

    def _start(self) -> None:
        """One life of the process: returns when it answers."""
        setup = self.setup
        program = find_program(setup.options.server)
        if "path" in self._door:
            Path(str(self._door["path"])).unlink(missing_ok=True)
        rotate(self.log)
        tether, self._tether = os.pipe()
        try:
            with self.log.open("ab") as log:
                process = self._process = subprocess.Popen(
                    ["/bin/sh", "-c", TETHER, str(tether), program, "-"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(tether,),
                    env={**os.environ, **marks(setup.state, setup.journal, setup.name)},
                )
        finally:
            os.close(tether)
        record_process(setup.state, setup.journal, setup.name, process.pid, program)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._configuration().encode())
                process.stdin.close()
            self._wait_until_it_answers(process)
            self._answering = process, time.monotonic()
        except BaseException:
            self._end()
            raise

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S_MAX
        admin = self._admin()
        try:
            while process.poll() is None:
                try:
                    admin.ask("PING")
                except (exceptions.RedisError, OSError) as error:
                    if time.monotonic() >= deadline:
                        raise self._failed(f"it did not answer within {START_S_MAX:g} s ({error})") from error
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_S)
                else:
                    return
        finally:
            admin.close()
        raise self._failed(f"it ended with code {process.returncode} while it started")

    def _watch(self, stopping: threading.Event) -> None:
        """Start it again whenever it dies."""
        quick = 0
        while (process := self._process) is not None:
            began = time.monotonic()
            process.wait()
            with self._life:
                if stopping.is_set():
                    return
                quick = 0 if self._stuck else quick + 1 if time.monotonic() - began < _UPTIME_S else 1
                self._stuck = False
                self._clear()
                try:
                    if quick > _RESTARTS_MAX:
                        raise self._failed(f"it died {quick} times in a row")
                    self._start()
                    for call in self.came:
                        call()
                except ResourceFailed as failure:
                    self._failure = failure
                    return

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number, seconds in ((signal.SIGTERM, STOP_S_MAX), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        self._clear()
        forget_process(self.setup.state, self.setup.name)

    def _clear(self) -> None:
        """After its end: let go of the tether, which kills what is left of its group."""
        if self._tether >= 0:
            os.close(self._tether)
            self._tether = -1
        end_marked(marks(self.setup.state, self.setup.journal, self.setup.name))

    def _failed(self, what: str) -> ResourceFailed:
        tail = log_tail(self.log)
        return ResourceFailed(
            f"{self.setup.name}: statefork's own Valkey server can't run: {what}",
            hint=f"It says:\n{tail}" if tail else f"Its log is {self.log}",
            resource=self.setup.name,
        )


_servers: dict[Path, ValkeyServer] = {}
_servers_lock = threading.Lock()


def server_at(setup: Setup) -> ValkeyServer:
    """The server of a place: one for all who ask in this process."""
    place = setup.place.resolve()
    with _servers_lock:
        known = _servers.get(place)
        if known is None or (not known.used and (known.setup.options, known.setup.kept) != (setup.options, setup.kept)):
            known = _servers[place] = ValkeyServer(setup)
        return known
