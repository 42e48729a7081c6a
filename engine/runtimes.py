"""Resident processes: started, probed, started again when they die, and never left behind.

::

    plan = Plan(name="search", command=("search-server", "--port", "7700"), probe=ask)
    async with resident(plan, state=state, journal=journal) as runtime:
        ...

Three things end what a dead engine left: every runtime is tethered to a pipe that only the engine holds, and its whole
process group is killed when that closes, however the engine ended; every process bears the journal's id and the state
directory in its environment; and ``runtimes/<name>.json`` records it, so that :func:`reap_leftovers` finds it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.abc
import msgspec
import psutil

from statefork.engine.errors import ResourceFailed, RuntimeDied

JOURNAL_VARIABLE = "STATEFORK_JOURNAL"
STATE_VARIABLE = "STATEFORK_STATE"
RUNTIME_VARIABLE = "STATEFORK_RUNTIME"

PROBE_EVERY_S = 0.02
BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 5.0
REAP_S_MAX = 10.0
LOGS_KEPT = 5
LOG_TAIL_LINES = 12
_LOG_TAIL_BYTES = 8192

# A grandchild waits for the pipe's end and then kills its process group, which is the runtime's; the runtime itself
# takes the shell's place. PR_SET_PDEATHSIG would not do: it fires when the forking *thread* ends, and spares children.
# The grandchild bears no marks: whoever ends what is marked must not end it before it has done its work, for a process
# that writes its title over its environment (nginx) has none either.
TETHER = '( exec env -i /bin/sh -c "read _ ; kill -KILL 0" < "/proc/self/fd/$0" > /dev/null 2>&1 & ) ; exec "$@"'

E = TypeVar("E", bound=ResourceFailed)
Probe = Callable[["Runtime"], Awaitable[None]]
OnDeath = Callable[["Runtime", int], Awaitable[None]]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one resident process.

    ``probe`` returns when the process answers and raises while it does not; it is asked again until ``ready_s`` have
    passed. ``restarts_max`` deaths in a row, each within ``uptime_s`` of its start, are not a passing fault.
    """

    name: str
    command: tuple[str, ...]
    probe: Probe
    ready_s: float = 30.0
    stop_s: float = 3.0  # from SIGTERM to SIGKILL
    uptime_s: float = 10.0
    restarts_max: int = 5
    environment: Mapping[str, str] = {}
    directory: str | None = None
    pass_fds: tuple[int, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """``runtimes/<name>.json``: which process runs a runtime. Pid and start time together name one process for ever."""

    name: str
    pid: int
    started_ticks: int
    journal: str
    command: str


class Runtime:
    """One resident process under supervision. ``pid`` and ``starts`` tell of its present life."""

    def __init__(self, plan: Plan, *, state: Path, journal: str, on_death: OnDeath | None) -> None:
        self.plan = plan
        self.pid = 0
        self.starts = 0
        self.log = state / "logs" / f"{plan.name}.log"
        self._state = state
        self._journal = journal
        self._on_death = on_death
        self._up = anyio.Event()
        self._failure: RuntimeDied | None = None

    async def ready(self) -> None:
        """Return when the process answers, waiting for a restart under way. Raises RuntimeDied if it is given up."""
        await self._up.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def given_up(self) -> bool:
        """Whether it died too often to be started again."""
        return self._failure is not None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep it running. Raises ResourceFailed when it does not come up the first time."""
        quick = 0
        while True:
            began = anyio.current_time()
            try:
                code = await self._live(task_status)
            except ResourceFailed:
                if self.starts == 1:
                    raise
                quick += 1
            else:
                self._up = anyio.Event()
                if self._on_death is not None:
                    await self._on_death(self, code)
                quick = quick + 1 if anyio.current_time() - began < self.plan.uptime_s else 1
            if quick > self.plan.restarts_max:
                self._failure = self._error(RuntimeDied, f"died {quick} times in a row")
                self._up.set()
                return
            await anyio.sleep(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** (quick - 1)))

    async def _live(self, task_status: anyio.abc.TaskStatus[None]) -> int:
        """One life of the process, to its end; its exit code."""
        self.starts += 1
        async with self._spawned() as process:
            await self._wait_until_it_answers(process)
            self._up.set()
            if self.starts == 1:
                task_status.started()
            return await process.wait()

    @asynccontextmanager
    async def _spawned(self) -> AsyncIterator[anyio.abc.Process]:
        rotate(self.log)
        tether, held = os.pipe()
        process: anyio.abc.Process | None = None
        try:
            with self.log.open("ab") as log:
                process = await anyio.open_process(
                    ["/bin/sh", "-c", TETHER, str(tether), *self.plan.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.plan.directory,
                    env={**os.environ, **self.plan.environment, **self._marks()},
                    start_new_session=True,  # a terminal's Ctrl-C reaches the engine, which then ends us in order
                    pass_fds=(tether, *self.plan.pass_fds),
                )
            self.pid = process.pid
            record_process(self._state, self._journal, self.plan.name, self.pid, self.plan.command[0])
            yield process
        except FileNotFoundError as error:
            raise self._error(ResourceFailed, f"can't be started: {error}") from error
        finally:
            os.close(tether)
            with anyio.CancelScope(shield=True):
                await self._end(process, held)
            self.pid = 0

    async def _end(self, process: anyio.abc.Process | None, held: int) -> None:
        """Ask it to end, then let go of the tether, which kills what is left of its group; join it."""
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(self.plan.stop_s):
                await process.wait()
        os.close(held)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
            await process.wait()
            await process.aclose()
        await anyio.to_thread.run_sync(end_marked, self._marks())
        forget_process(self._state, self.plan.name)

    async def _wait_until_it_answers(self, process: anyio.abc.Process) -> None:
        reason = "it was not asked"
        with anyio.move_on_after(self.plan.ready_s):
            while process.returncode is None:
                try:
                    await self.plan.probe(self)
                except Exception as error:  # noqa: BLE001 - whatever a probe raises means: not yet
                    reason = str(error) or type(error).__name__
                else:
                    return
                with anyio.move_on_after(PROBE_EVERY_S):
                    await process.wait()
        if process.returncode is not None:
            raise self._error(ResourceFailed, f"ended with code {process.returncode} while it started")
        raise self._error(ResourceFailed, f"did not answer within {self.plan.ready_s:g} s ({reason})")

    def _marks(self) -> dict[str, str]:
        return marks(self._state, self._journal, self.plan.name)

    def _error(self, kind: type[E], what: str) -> E:
        tail = log_tail(self.log)
        hint = f"The end of its log ({self.log}):\n{tail}" if tail else f"Its log ({self.log}) is empty"
        return kind(f"runtime {self.plan.name!r} {what}", hint=hint, runtime=self.plan.name)


@asynccontextmanager
async def resident(plan: Plan, *, state: Path, journal: str, on_death: OnDeath | None = None) -> AsyncIterator[Runtime]:
    """Run a process as long as the body runs. Raises ResourceFailed, with the end of its log, if it never comes up.

    ``on_death(runtime, exit code)`` is called after each death, before the restart.
    """
    runtime = Runtime(plan, state=state, journal=journal, on_death=on_death)
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(runtime.run)
            yield runtime
        except BaseException as error:  # noqa: BLE001 - raised below, outside the group, which would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


# -- records and leftovers -------------------------------------------------------------------------------------------


def marks(state: Path, journal: str, name: str) -> dict[str, str]:
    """What the environment of every process of a runtime holds, also of one that somebody else starts for us."""
    return {JOURNAL_VARIABLE: journal, STATE_VARIABLE: str(state.resolve()), RUNTIME_VARIABLE: name}


def record_process(state: Path, journal: str, name: str, pid: int, command: str) -> None:
    """Record a process, so that a later engine can end it."""
    ticks = _started_ticks(pid)
    record = Recorded(name=name, pid=pid, started_ticks=ticks, journal=journal, command=command)
    path = _record_path(state, name)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    partial.replace(path)


def forget_process(state: Path, name: str) -> None:
    """Remove the record. Idempotent."""
    _record_path(state, name).unlink(missing_ok=True)


def reap_leftovers(state: Path, journal: str) -> list[str]:
    """End what earlier engines of this state directory and journal left running; the names of those runtimes.

    To be called by the one who holds the state directory's lock, before anything is started. A process is ended only if
    its environment bears both the journal's id and the state directory; a recorded one also by its start time, and then
    with its whole group.
    """
    found = set()
    for path in sorted((state / "runtimes").glob("*.json")):
        with contextlib.suppress(msgspec.MsgspecError, OSError):
            record = msgspec.json.decode(path.read_bytes(), type=Recorded)
            if record.journal == journal and _is_leftover(record, state):
                found.add(record.name)
                _kill_group(record.pid)
    found |= end_marked({JOURNAL_VARIABLE: journal, STATE_VARIABLE: str(state.resolve())})
    for path in (state / "runtimes").glob("*.json"):
        path.unlink(missing_ok=True)
    return sorted(found)


def end_marked(wanted: Mapping[str, str]) -> set[str]:
    """Kill every process whose environment has these values, and wait for their end; the names of their runtimes."""
    names, killed = set(), []
    kin = _self_and_ancestors()
    for pid, environment in _environments():
        if pid not in kin and wanted.items() <= environment.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                process.kill()
                killed.append(process)
                names.add(environment.get(RUNTIME_VARIABLE, "?"))
    psutil.wait_procs(killed, timeout=REAP_S_MAX)
    return names


def _is_leftover(record: Recorded, state: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        environment = psutil.Process(record.pid).environ()
        return (
            _started_ticks(record.pid) == record.started_ticks
            and environment.get(JOURNAL_VARIABLE) == record.journal
            and environment.get(STATE_VARIABLE) == str(state.resolve())
        )
    return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Pid and environment of every process of this user that bears a mark."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            data = (entry / "environ").read_bytes()
            if JOURNAL_VARIABLE.encode() in data:
                pairs = (item.partition("=") for item in os.fsdecode(data).split("\0"))
                yield int(entry.name), {name: value for name, _, value in pairs}


def _self_and_ancestors() -> set[int]:
    me = psutil.Process()
    return {me.pid, *(parent.pid for parent in me.parents())}


def _started_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 when it is gone."""
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _record_path(state: Path, name: str) -> Path:
    return state / "runtimes" / f"{name}.json"


def rotate(log: Path) -> None:
    """Begin a new log file; the ones before it are kept as ``.1``, ``.2``, …, the oldest is dropped."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # servers tell in it what they were asked
    numbered = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, LOGS_KEPT))]
    for newer, older in zip(reversed(numbered[:-1]), reversed(numbered[1:]), strict=True):
        if newer.exists():
            newer.replace(older)


def log_tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_TAIL_LINES:])
