"""The engine's side of the resident application server: start it, talk to it, start it again when it dies.

A thread owns the process: it reads the control channel and restarts the server after a crash, with the same listening
socket (so the port stays, and requests that arrive meanwhile wait in its backlog) and with every binding of the table.
Operations are awaited from trio and asyncio alike. The channel is the child's standard input and output: when the
engine dies in whatever way, it closes, and the server ends. What the server itself may have started bears the marks of
engine.runtimes, by which it is found and ended with it, or by the next engine.

It is not run by ``engine.runtimes.resident``: that needs a task which lives as long as the process, and each life of
this process needs a channel of its own, over which it must be bound again before it may answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.lowlevel
import msgspec

from statefork.engine.errors import MissingDependency, ResourceBusy, ResourceFailed, RuntimeDied
from statefork.engine.runtimes import end_marked, forget_process, log_tail, marks, record_process, rotate
from statefork.engine.tickets import KEY_BYTES

_OPERATION_S = 30.0
_STOP_S = 3.0
_RESTARTS_MAX = 5  # in a row, each within _UPTIME_S of the one before: then the fault is not a passing one
_UPTIME_S = 10.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a server."""

    name: str
    stack: str
    settings: str
    threads: int
    requests_per_environment_max: int
    start_s: float
    state: Path
    journal: str
    path: str  # where the project is; put before Python's module search path; empty = nowhere
    determinism: str = "off"

    @property
    def log(self) -> Path:
        """Where the server's standard error goes."""
        return self.state / "logs" / f"{self.name}.log"

    @property
    def run(self) -> str:
        """A short path of the server's own, for sockets: theirs may have a hundred characters only."""
        named = hashlib.sha256(f"{self.state.resolve()}\0{self.journal}\0{self.name}".encode()).hexdigest()[:16]
        return str(Path(tempfile.gettempdir()) / f"statefork-web-{named}")

    @property
    def marks(self) -> dict[str, str]:
        """What the environment of all its processes holds."""
        return marks(self.state, self.journal, self.name)


class AppServer:
    """One resident server process and its control channel."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.ticket_key = secrets.token_bytes(KEY_BYTES)
        self.port = 0
        self.pid = 0
        self.restarts = 0
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._up: Future[None] = Future()
        self._stopping = False
        self._lock = threading.Lock()
        self._number = 0
        self._outstanding: dict[int, Future[Any]] = {}
        self._table: dict[tuple[str, int], dict[str, Any]] = {}
        self._idle_waiters: dict[tuple[str, int], list[Future[None]]] = {}

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process and wait until it serves. Idempotent. Raises ResourceFailed with the end of its log."""
        if self._thread is None:
            self._stopping = False
            self._up = Future()
            self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
            self.port = self._socket.getsockname()[1]
            self._thread = threading.Thread(target=self._supervise, name=f"web-{self._launch.name}", daemon=True)
            self._thread.start()
        try:
            await self._wait_up()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def stop(self) -> None:
        """End the process and join it. Idempotent."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None:
            await anyio.to_thread.run_sync(self._end_process)
            await anyio.to_thread.run_sync(thread.join)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.pid = 0
        end_marked(self._launch.marks)
        forget_process(self._launch.state, self._launch.name)

    async def _wait_up(self) -> None:
        try:
            with anyio.fail_after(self._launch.start_s):
                await result_of(self._up)
        except TimeoutError:
            raise ResourceFailed(
                f"the server of {self._launch.name!r} did not start within {self._launch.start_s:g} s",
                hint=self._log_tail(),
                resource=self._launch.name,
            ) from None

    # -- operations -------------------------------------------------------------------------------------------

    async def bind(self, env: str, epoch: int, activation: int, stores: dict[str, Any]) -> None:
        """Bind, now and after every restart."""
        arguments = {"env": env, "epoch": epoch, "activation": activation, "stores": stores}
        self._table[env, epoch] = arguments
        try:
            await self.call("bind", **arguments)
        except BaseException:
            if self._table.get((env, epoch)) is arguments:
                del self._table[env, epoch]
            raise

    async def release(self, env: str, epoch: int) -> list[str]:
        """Evict a binding; the names of what still runs without its stores."""
        self._table.pop((env, epoch), None)
        try:
            return list((await self.call("release", env=env, epoch=epoch))["living"])
        except RuntimeDied:
            return []  # it ended with the process, and is not bound again

    def bound(self) -> list[tuple[str, int]]:
        """The bindings of the table."""
        return list(self._table)

    async def pending(self, env: str, epoch: int) -> tuple[str, ...]:
        """What must end before the environment is quiet."""
        return tuple((await self.call("pending", env=env, epoch=epoch))["pending"])

    async def living(self, env: str, epoch: int) -> tuple[str, ...]:
        """What was cut off by ``terminate`` and has not ended."""
        return tuple((await self.call("living", env=env, epoch=epoch))["living"])

    async def idle(self, env: str, epoch: int, still: Callable[[str, int], Awaitable[tuple[str, ...]]]) -> None:
        """Return when ``still`` (pending, or living) names nothing. The server tells whenever that may have changed."""
        while True:
            told: Future[None] = Future()
            with self._lock:
                self._idle_waiters.setdefault((env, epoch), []).append(told)
            if not await still(env, epoch):
                return
            await result_of(told)

    async def terminate(self, env: str, epoch: int, within_s: float) -> tuple[str, ...]:
        """Cut what runs now off from the stores; the names of what has not ended ``within_s`` seconds later."""
        try:
            if (await self.call("terminate", env=env, epoch=epoch))["living"]:
                with anyio.move_on_after(within_s):
                    await self.idle(env, epoch, self.living)
            return await self.living(env, epoch)
        except RuntimeDied:
            return ()  # whatever ran has ended with the process

    async def call(self, op: str, **arguments: Any) -> Any:
        """One operation. Waits for a restart in progress. Raises ResourceBusy, ResourceFailed, RuntimeDied."""
        if self._thread is None:
            raise RuntimeDied(f"the server of {self._launch.name!r} is not running", resource=self._launch.name)
        await self._wait_up()
        answer: Future[Any] = Future()
        await anyio.to_thread.run_sync(self._send, op, arguments, answer)
        try:
            with anyio.fail_after(_OPERATION_S):
                return await result_of(answer)
        except TimeoutError:
            raise ResourceFailed(
                f"the server of {self._launch.name!r} did not answer {op!r} within {_OPERATION_S:g} s",
                resource=self._launch.name,
            ) from None

    def _send(self, op: str, arguments: dict[str, Any], answer: Future[Any]) -> int:
        with self._lock:
            self._number += 1
            number = self._number
            self._outstanding[number] = answer
            assert self._process is not None
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                del self._outstanding[number]
                answer.set_exception(self._died(op))
        return number

    # -- the thread that owns the process ---------------------------------------------------------------------

    def _supervise(self) -> None:
        quick = 0
        while not self._stopping:
            began = time.monotonic()
            try:
                self._boot()
            except (ResourceFailed, MissingDependency) as failure:
                self._end_process()
                if self.restarts == 0 or quick >= _RESTARTS_MAX:
                    self._up.set_exception(failure)
                    return
            else:
                self._up.set_result(None)
                self._read_to_end()
                self._end_process()
                if not self._stopping:
                    self._up = Future()
                self._fail_outstanding()
            quick = quick + 1 if time.monotonic() - began < _UPTIME_S else 0
            if quick > _RESTARTS_MAX:
                self._up.set_exception(
                    RuntimeDied(
                        f"the server of {self._launch.name!r} died {quick} times in a row",
                        hint=self._log_tail(),
                        resource=self._launch.name,
                    )
                )
                return
            self.restarts += 1

    def _boot(self) -> None:
        """Spawn, configure, bind what the table holds, and let it accept."""
        launch = self._launch
        assert self._socket is not None
        search_path = [launch.path, os.environ.get("PYTHONPATH", "")]
        rotate(launch.log)
        with launch.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "statefork.adapters.resources.web.host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                pass_fds=(self._socket.fileno(),),
                start_new_session=True,  # a terminal's Ctrl-C reaches the engine, which then ends us in order
                env={
                    "MALLOC_ARENA_MAX": "2",  # else each thread's arena keeps its peak, whoever it was for
                    **os.environ,
                    **launch.marks,
                    "PYTHONPATH": os.pathsep.join(part for part in search_path if part),
                    # the order of sets of strings is chance too, and the same for all that a process does
                    **({"PYTHONHASHSEED": "0"} if launch.determinism != "off" else {}),
                },
            )
        self.pid = self._process.pid
        record_process(launch.state, launch.journal, launch.name, self.pid, sys.executable)
        self._ask(
            "configure",
            stack=launch.stack,
            setup={
                "settings": launch.settings,
                "path": launch.path,
                "threads": launch.threads,
                "per_env": launch.requests_per_environment_max,
                "run": launch.run,
            },
            key=self.ticket_key.hex(),
            fd=self._socket.fileno(),
            determinism=launch.determinism,
        )
        for arguments in list(self._table.values()):
            self._ask("bind", **arguments)
        self._ask("serve")

    def _ask(self, op: str, **arguments: Any) -> None:
        answer: Future[Any] = Future()
        number = self._send(op, arguments, answer)
        while not answer.done():
            if not self._read_one():
                with self._lock:
                    self._outstanding.pop(number, None)
                raise ResourceFailed(
                    f"the server of {self._launch.name!r} ended while it started ({op})",
                    hint=self._log_tail(),
                    resource=self._launch.name,
                )
        error = answer.exception()
        if isinstance(error, MissingDependency):
            raise error
        if error is not None:
            raise ResourceFailed(f"the server of {self._launch.name!r} can't start: {error}", hint=self._log_tail())

    def _read_to_end(self) -> None:
        while self._read_one():
            pass

    def _read_one(self) -> bool:
        process = self._process
        assert process is not None
        stdout: IO[str] | None = process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            return False
        message = json.loads(line)
        if "event" in message:
            with self._lock:
                waiters = self._idle_waiters.pop((message["env"], message["epoch"]), [])
            _resolve(waiters)
            return True
        with self._lock:
            answer = self._outstanding.pop(message["id"], None)
        if answer is not None:
            _settle(answer, message, self._launch.name)
        return True

    def _fail_outstanding(self) -> None:
        with self._lock:
            lost, self._outstanding = self._outstanding, {}
            waiters = [waiter for group in self._idle_waiters.values() for waiter in group]
            self._idle_waiters.clear()
        for answer in lost.values():
            answer.set_exception(self._died("an operation"))
        _resolve(waiters)  # whatever ran has ended with the process

    def _died(self, during: str) -> RuntimeDied:
        return RuntimeDied(
            f"the server of {self._launch.name!r} died during {during}",
            hint="It is started again by itself",
            resource=self._launch.name,
        )

    def _log_tail(self) -> str:
        tail = log_tail(self._launch.log)
        return f"The end of its log ({self._launch.log}):\n{tail}" if tail else ""


def _settle(answer: Future[Any], message: dict[str, Any], resource: str) -> None:
    if "ok" in message:
        answer.set_result(message["ok"])
    elif message["error"] == "resource_busy":
        answer.set_exception(ResourceBusy(message["message"], resource=resource))
    elif message["error"] == MissingDependency.code:
        answer.set_exception(MissingDependency(message["message"], hint=message["hint"], resource=resource))
    else:
        answer.set_exception(ResourceFailed(message["message"], resource=resource))


def _resolve(waiters: list[Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def result_of(future: Future[Any]) -> Any:
    """Await a thread's future on trio or asyncio. The future itself is not cancelled with the awaiting task."""
    if not future.done():
        native: Any = anyio.lowlevel.current_token().native_token
        in_trio = hasattr(native, "run_sync_soon")
        post: Callable[[Callable[[], object]], object] = (
            native.run_sync_soon if in_trio else native.call_soon_threadsafe
        )
        finished = anyio.Event()

        def done(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
                post(finished.set)

        future.add_done_callback(done)
        await finished.wait()
    return future.result()
