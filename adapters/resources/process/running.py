"""One command that runs for one branch: started by its keeper, held still, asked to end, ended. All methods block."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from statefork.adapters.resources.process import keeper
from statefork.adapters.resources.process.accounts import Account
from statefork.adapters.resources.process.cgroups import Leaf
from statefork.adapters.resources.process.freezing import go_on, stop_all
from statefork.adapters.resources.process.networks import Network
from statefork.adapters.resources.process.standing import (
    END_S_MAX,
    Standing,
    Who,
    end_standing,
    put_standing,
    who,
)
from statefork.engine.errors import ResourceBusy, ResourceFailed
from statefork.engine.runtimes import log_tail, rotate

_FREEZE_S_MAX = 10.0
_SIGNALLED = 128


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and as whom."""

    resource: str
    env: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    marks: Mapping[str, str]  # in the environment too; they name this branch's processes among all
    directory: Path
    workplace: Path  # the branch's: log, run directory and record lie in it
    port: int
    leaf: Leaf | None = None
    account: Account | None = None
    processes_max: int = 0
    alone_in_network: bool = False


class Running:
    """See the module. Made by ``start``."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.log = launch.workplace / "log"
        self.paused = False  # ended in order, to be started again
        self.network: Network | None = None  # its own; the same when it is started again
        self._keeper: subprocess.Popen[bytes] | None = None
        self._stopped: list[Who] = []

    def start(self) -> None:
        """Start it; whether it serves is another question. Raises ResourceFailed, OSError."""
        launch = self.launch
        self._stand(Who())
        if launch.leaf is not None:
            launch.leaf.make(launch.processes_max)
        if launch.alone_in_network and self.network is None:
            self.network = Network()
        run = launch.workplace / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(mode=0o700)
        if launch.account is not None:
            os.chown(run, launch.account.uid, launch.account.gid)
        rotate(self.log)
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env={},
                start_new_session=True,
                pass_fds=(self.network.descriptor,) if self.network is not None else (),
            )
        self._stand(who(self._keeper.pid))
        self._tell(json.dumps(self._plan()).encode() + b"\n")
        self.paused = False

    def _stand(self, keeper: Who) -> None:
        launch = self.launch
        leaf = str(launch.leaf.path) if launch.leaf is not None else ""
        standing = Standing(
            engine=who(os.getpid()), keeper=keeper, leaf=leaf, marks=dict(launch.marks), port=launch.port
        )
        put_standing(launch.workplace, standing)

    def _plan(self) -> dict[str, object]:
        launch, account = self.launch, self.launch.account
        return {
            "command": launch.words,
            "environment": {**launch.environment, **launch.marks},
            "directory": str(launch.directory),
            "leaf": str(launch.leaf.path) if launch.leaf is not None else "",
            "uid": account.uid if account is not None else None,
            "gid": account.gid if account is not None else None,
            "alone": account is not None and account.alone,
            "processes_max": launch.processes_max,
            "network": self.network.descriptor if self.network is not None else -1,
            "stop_signal": signal.SIGTERM,
        }

    def _tell(self, line: bytes) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._keeper.stdin.write(line)
            self._keeper.stdin.flush()

    # -- looking ----------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """The command's processes, the keeper left out."""
        if self.launch.leaf is not None:
            return self.launch.leaf.processes()
        return keeper.descendants(self._keeper.pid) if self._keeper is not None else []

    def all_pids(self) -> list[int]:
        """With the keeper."""
        return [self._keeper.pid, *self.pids()] if self._keeper is not None else []

    def ended(self) -> str:
        """How it has ended; empty while it runs, and while it was ended in order."""
        if self.paused:
            return ""
        code = self._keeper.poll() if self._keeper is not None else 0
        if code is None:
            return ""
        if code < 0:
            return f"the process that keeps it was ended by signal {-code}"
        return f"it was ended by signal {code - _SIGNALLED}" if code > _SIGNALLED else f"it ended with status {code}"

    def failed(self, what: str) -> ResourceFailed:
        """The error for people, with the end of what the command said."""
        tail = log_tail(self.log)
        launch = self.launch
        return ResourceFailed(
            f"{launch.resource}: {launch.words[0]} of {launch.env} {what}",
            hint=f"It said:\n{tail}" if tail else "It said nothing",
            resource=launch.resource,
            env=launch.env,
        )

    # -- holding still ----------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Hold all of its processes still. Raises ResourceBusy, naming those that go on."""
        if self.launch.leaf is not None:
            if self.launch.leaf.freeze(on=True, within_s=_FREEZE_S_MAX):
                return
            going_on = self.pids()
        else:
            stopped, going_on = stop_all(self.pids, within_s=_FREEZE_S_MAX)
            self._stopped += stopped
        if going_on:
            self.thaw()
            raise ResourceBusy(
                f"{self.launch.resource}: processes of {self.launch.env} can't be held still: "
                f"{', '.join(map(str, going_on))}",
                hint="They wait for the kernel (a disk, a network file system), or are another user's",
                resource=self.launch.resource,
                env=self.launch.env,
            )

    def thaw(self) -> None:
        """Let them go on. Idempotent."""
        if self.launch.leaf is not None:
            with contextlib.suppress(FileNotFoundError):
                self.launch.leaf.freeze(on=False, within_s=_FREEZE_S_MAX)
        stopped, self._stopped = self._stopped, []
        go_on(stopped)

    # -- the end ----------------------------------------------------------------------------------------------

    def pause(self, stop_s: float) -> None:
        """End it in order, to be started again; by force where it does not in time. Idempotent."""
        if self._keeper is not None and not self.paused and not self.ended():
            self._tell(b"stop\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(stop_s)
            self.paused = True
        self._end()

    def stop(self) -> None:
        """End it with everything it started. Idempotent."""
        self.paused = False
        self._end()
        if self.network is not None:
            self.network.close()

    def _end(self) -> None:
        process = self._keeper
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S_MAX)
        in_order = process is not None and process.returncode is not None and process.returncode >= 0
        end_standing(self.launch.workplace, kept=in_order)
        if self.launch.leaf is not None:  # also where somebody took the record away
            self.launch.leaf.kill(within_s=END_S_MAX)
            self.launch.leaf.remove()
        if process is not None and process.returncode is None:
            process.kill()
            process.wait()
        self._keeper, self._stopped = None, []
