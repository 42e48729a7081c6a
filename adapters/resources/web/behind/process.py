"""A process behind the server, which ends when the server does, with all that it has started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from statefork.engine.runtimes import TETHER

_STOP_S = 2.0


class Tethered:
    """One process in a group of its own: the group is killed when the pipe closes that only this process holds."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        pass_fds: Sequence[int] = (),
        spoken: bool = False,
    ) -> None:
        tether, self._held = os.pipe()
        pipe = subprocess.PIPE if spoken else None
        try:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", TETHER, str(tether), *command],
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or 2,
                text=True,
                encoding="utf-8",
                env=dict(environment),
                cwd=directory,
                start_new_session=True,
                pass_fds=(tether, *pass_fds),
            )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(tether)
        self._stopping = False

    @property
    def pid(self) -> int:
        """Of the process itself, which also leads the group."""
        return self.process.pid

    def watch(self, died: Callable[[int], None]) -> None:
        """Call ``died`` with its status when it ends without having been stopped."""

        def wait() -> None:
            status = self.process.wait()
            if not self._stopping:
                died(status)

        threading.Thread(target=wait, name=f"watch {self.pid}", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; then end the group. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        os.close(self._held)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
