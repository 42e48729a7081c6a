"""Which engine serves an environment of Gymnasium. A state directory has one, so all that name it share that.

In the process that has opened it already, its own. Else whoever serves seats on the directory, in whatever process.
Else, in a worker that ``multiprocessing`` started (``AsyncVectorEnv``), one in a process of its own, which ends with
its last user: workers come and go, and none may take the others' engine with it. Else one in this process.
"""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from statefork.adapters.interfaces.control.client import WorldNotUp
from statefork.adapters.interfaces.gym.door import serving
from statefork.adapters.interfaces.gym.host import host_of, users_of
from statefork.adapters.interfaces.gym.remote import RemoteSeat, dial
from statefork.adapters.interfaces.gym.seats import LocalSeat, Seat, clear, take
from statefork.adapters.interfaces.sync import Engine, open_engine
from statefork.adapters.interfaces.worlds import find_contract
from statefork.engine.errors import ContractError
from statefork.engine.runtimes import log_tail, rotate

POLL_S = 0.05
_HOST = "statefork.adapters.interfaces.gym.host"


def default_state(contract: str | Path) -> Path:
    """Where an environment's engine keeps its state unless it is told: a directory for each contract."""
    return Path(os.environ.get("STATEFORK_STATE", "state")) / "gym" / Path(contract).stem


class _Opened:
    """An engine of this process, and how many seats use it."""

    def __init__(self, contract: str | Path, state: Path, slots: int | None) -> None:
        self.contract = find_contract(contract)
        self.users = 0
        self._stack = ExitStack()
        self.engine: Engine = self._stack.enter_context(open_engine(contract, state=state, slots=slots))
        try:
            clear(self.engine)
            self._stack.enter_context(serving(self.engine))
        except BaseException:
            self._stack.close()
            raise

    def check(self, contract: str | Path, state: Path) -> None:
        """Raise ContractError where it serves another contract."""
        if self.contract != find_contract(contract):
            raise ContractError(
                f"the engine on {state} serves {self.contract.stem!r}, not {contract!s}",
                hint="Give another state directory",
                state=str(state),
            )

    def close(self) -> None:
        """Cut the other processes' seats, and park all."""
        self._stack.close()


class _Registry:
    """The engines of this process, by state directory."""

    def __init__(self) -> None:
        self.opened: dict[Path, _Opened] = {}
        self.lock = threading.RLock()
        self.copies: list[object] = []  # of another process's: never to be closed here, so never to be dropped

    def forked(self) -> None:
        """This is a child now. A thread that is not here may have held the lock."""
        self.copies.append(self.opened)
        self.opened, self.lock = {}, threading.RLock()


_here = _Registry()
os.register_at_fork(after_in_child=_here.forked)


def sit(contract: str | Path, state: Path, slots: int | None, name: str | None) -> Seat:
    """A seat in the engine that serves the state directory; it is opened if there is none.

    Raises ContractError where it serves another contract, StateLocked where a program has it open that serves no seats,
    WorldNotUp, and what opening an engine raises.
    """
    state = state.absolute()
    with _here.lock:
        here = state in _here.opened
    if here:
        return sit_here(contract, state, slots, name)
    users = _enter(state)
    try:
        with _starting(state):
            connected = dial(state)
            if connected is None and multiprocessing.parent_process() is not None:
                _start(contract, state, slots)
                connected = dial(state)
                if connected is None:
                    raise _not_up(contract, state)
            opened = _use(contract, state, slots) if connected is None else None
        if connected is not None:
            return RemoteSeat(state, connected, name, lambda: _go(state, users))
    except BaseException:
        os.close(users)
        raise
    os.close(users)
    assert opened is not None
    return _seated(opened, state, name)


def sit_here(contract: str | Path, state: Path, slots: int | None, name: str | None) -> LocalSeat:
    """A seat in an engine of this process. Raises as ``sit``, and StateLocked where another one has the directory."""
    state = state.absolute()
    users = _enter(state)
    try:
        with _starting(state):
            opened = _use(contract, state, slots)
    finally:
        os.close(users)
    return _seated(opened, state, name)


def _use(contract: str | Path, state: Path, slots: int | None) -> _Opened:
    with _here.lock:
        opened = _here.opened.get(state)
        if opened is None:
            opened = _here.opened[state] = _Opened(contract, state, slots)
        opened.check(contract, state)
        opened.users += 1
    return opened


def _seated(opened: _Opened, state: Path, name: str | None) -> LocalSeat:
    try:
        return _SharedSeat(opened, state, take(opened.engine, name))
    except BaseException:
        _let_go(opened, state)
        raise


def _enter(state: Path) -> int:
    """Be one of the users of the directory's engine; waits where one is ending now. Returns the file that is held."""
    users_of(state).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = os.open(users_of(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
    except BaseException:
        os.close(users)
        raise
    return users


def _go(state: Path, users: int) -> None:
    """Be a user no more. The last one waits for the engine's end: then the directory is free."""
    os.close(users)
    with users_of(state).open() as file, host_of(state).open("a") as host:
        while not _locks(host, fcntl.LOCK_SH):  # its process lives
            if _locks(file, fcntl.LOCK_SH) and not _locks(file, fcntl.LOCK_EX):
                return  # others use it
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(POLL_S)


def _locks(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _starting(state: Path) -> Iterator[None]:
    """One process at a time looks for an engine, and starts one."""
    with users_of(state).with_suffix(".starting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _let_go(opened: _Opened, state: Path) -> None:
    with _here.lock:
        opened.users -= 1
        if not opened.users and _here.opened.get(state) is opened:
            del _here.opened[state]
            opened.close()


class _SharedSeat(LocalSeat):
    """A seat in an engine of this process that closes with its last seat."""

    def __init__(self, opened: _Opened, state: Path, seat: LocalSeat) -> None:
        self.__dict__.update(seat.__dict__)
        self._opened = opened
        self._state = state

    def fork(self, n: int) -> Sequence[LocalSeat]:
        """See :class:`Seat`."""
        children = super().fork(n)
        with _here.lock:
            self._opened.users += n
        return [_SharedSeat(self._opened, self._state, one) for one in children]

    def leave(self) -> None:
        """See :class:`Seat`."""
        if not self._left:
            try:
                super().leave()
            finally:
                _let_go(self._opened, self._state)


@atexit.register
def _close_all() -> None:
    """Whatever the program has not closed: each environment is parked, and those that were lent are retired."""
    for opened in list(_here.opened.values()):
        opened.close()
    _here.opened.clear()


# --- a process of its own for the engine ------------------------------------------------------------------------------


def _log(state: Path) -> Path:
    return state / "logs" / "gym.log"


def _start(contract: str | Path, state: Path, slots: int | None) -> None:
    log = _log(state)
    rotate(log)
    command = [sys.executable, "-m", _HOST, str(find_contract(contract)), str(state), str(slots or 0)]
    with log.open("ab") as said:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, close_fds=True
        )
    try:
        while (connected := dial(state)) is None:
            if child.poll() is not None:
                raise _not_up(contract, state)
            time.sleep(POLL_S)
        connected.close()
    except BaseException:
        if child.poll() is None:
            child.terminate()
            child.wait()
        raise
    child.returncode = 0  # it is nobody's child from here on: do not warn that it runs


def _not_up(contract: str | Path, state: Path) -> WorldNotUp:
    said = log_tail(_log(state)).strip().rpartition("\n")[2]
    return WorldNotUp(
        f"the engine of {str(contract)!r} ended before it was ready",
        hint=f"It said: {said}" if said else f"Its log is {_log(state)}",
        state=str(state),
    )
