"""An engine as a process of its own that outlives the command which started it, and its end in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.control.client import Control, EngineDeaf, EngineForeign, WorldNotUp, held
from statefork.adapters.interfaces.control.protocol import Status
from statefork.adapters.resources.process.standing import started
from statefork.engine.runtimes import log_tail, rotate

POLL_S = 0.05

_EXIT_S = 10.0  # of a process that has let go of everything

Tell = Callable[[float, str], None]
"""Called again and again while something is waited for: the seconds so far, and what is being done, if that is known.

What it raises ends the waiting."""


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine ended."""

    pid: int | None  # None: there was none
    not_parked: tuple[str, ...] = ()


def log_of(state: Path) -> Path:
    """Where an engine in the background writes what it says."""
    return state / "logs" / "up.log"


def pid_of(state: Path) -> Path:
    """Where it stands which process it was."""
    return state / "logs" / "up.pid"


def running(state: Path) -> dict[str, Any] | None:
    """What the engine of a state directory says of itself; None where there is none.

    Raises EngineDeaf where somebody has the directory open and takes no commands.
    """
    holder = held(state)
    if holder is None:
        return None
    return Control(state).ask("status", Status()) | {"pid": holder.pid}


def start(contract: str, state: Path, options: tuple[str, ...], tell: Tell) -> dict[str, Any]:
    """Start ``statefork up`` and wait until it is ready; what it says of itself. Raises WorldNotUp with its words."""
    log = log_of(state)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rotate(log)
    command = [sys.executable, "-m", "statefork", "up", contract, "--state", str(state), "--json", *options]
    with log.open("ab") as said:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, close_fds=True
        )
    pid_of(state).write_text(str(child.pid))
    began = time.monotonic()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the engine, too, like Ctrl-C
    try:
        while True:
            tell(time.monotonic() - began, _doing(log))
            if child.poll() is not None:
                raise WorldNotUp(
                    f"the engine of {contract!r} ended with status {child.returncode} before it was ready",
                    hint=_words(log),
                    state=str(state),
                    log=str(log),
                )
            if (status := _answer(state)) is not None:
                child.returncode = 0  # it is nobody's child from here on: do not warn that it runs
                return {**status, "pid": child.pid, "log": str(log)}
            time.sleep(POLL_S)
    except BaseException:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _doing(log: Path) -> str:
    """What an engine that opens said last; it writes a line for each thing that it does."""
    said = log_tail(log).splitlines()
    return said[-1] if said and not said[-1].startswith("{") else ""


def _words(log: Path) -> str:
    """Why it ended: the error that it printed for scripts, or whatever stands last in its log."""
    said = log_tail(log)
    begin = max(said.rfind("\n{"), 0 if said.startswith("{") else -1)
    try:
        error = msgspec.json.decode(said[begin:].strip())["error"]
        return f"{error['message']}. {error.get('hint', '')}".strip()
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"It said: {said}" if said else f"Its log is {log}"


def _answer(state: Path) -> dict[str, Any] | None:
    holder = held(state)
    return Control(state).ask("status", Status()) if holder is not None and holder.takes_commands else None


def stop(state: Path, tell: Tell) -> Closed:
    """Tell the engine of a state directory to close, unless it does, and wait for its end. Idempotent.

    Raises EngineDeaf for one within a program, EngineForeign for another user's.
    """
    holder = held(state)
    if holder is None:
        return Closed(pid=None)
    server = holder.takes_commands or holder.pid == _started_here(state)
    known = server or holder.closing
    if holder.pid is None or not known:
        raise EngineDeaf(
            f"the state directory {state} is {holder}",
            hint="End it where it was opened, or wait until it has started",
            state=str(state),
            pid=holder.pid,
        )
    try:
        if not holder.closing:  # told a second time it would give up on parking
            os.kill(holder.pid, signal.SIGTERM)
    except PermissionError:
        raise EngineForeign(
            f"the engine on {state} (process {holder.pid}) answers only to the user who started it",
            hint="Do it as that user",
            state=str(state),
            pid=holder.pid,
        ) from None
    except ProcessLookupError:
        return Closed(pid=holder.pid)
    began = time.monotonic()
    while (left := held(state)) is not None and left.pid == holder.pid:
        tell(time.monotonic() - began, "")  # hundreds of environments take minutes; who has waited enough leaves
        time.sleep(POLL_S)
    gone_by = time.monotonic() + _EXIT_S
    while server and started(holder.pid) and time.monotonic() < gone_by:  # it has closed, and ends
        time.sleep(POLL_S)
    return Closed(pid=holder.pid, not_parked=_not_parked(state))


def _started_here(state: Path) -> int | None:
    """The process that was started last by ``start``; it may be starting still, or be closing already."""
    try:
        return int(pid_of(state).read_text())
    except (OSError, ValueError):
        return None


def _not_parked(state: Path) -> tuple[str, ...]:
    """What it said last, if it was started here."""
    try:
        last = log_of(state).read_text().splitlines()[-1]
        told = msgspec.json.decode(last)
    except (OSError, IndexError, msgspec.DecodeError):
        return ()
    return tuple(told.get("not_parked", ())) if isinstance(told, dict) and told.get("closed") else ()
