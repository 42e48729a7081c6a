"""Runs the program that builds a tree: with a deadline, cancellable, and ended with everything it started.

It is a process group of its own, tethered to a pipe that only the engine holds, and all of its processes bear the
marks by which the next engine finds what a killed one left (see engine.runtimes).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from statefork.adapters.resources.derived.options import Options
from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Services
from statefork.engine.runtimes import TETHER, end_marked, log_tail, marks
from statefork.journal.values import Json

OUTPUT_VARIABLE = "STATEFORK_OUTPUT"
INPUT_VARIABLE = "STATEFORK_INPUT_"
TREE_NAME, LOG_NAME = "tree", "log"

Inputs = Mapping[str, Mapping[str, Json]]
"""The addresses of the inputs, by resource name."""


class Builder:
    """Builds trees of one resource."""

    def __init__(self, name: str, options: Options, services: Services) -> None:
        self._name = name
        self._options = options
        self._services = services

    async def build(self, place: Path, inputs: Inputs) -> None:
        """Fill ``place/tree``. Raises ResourceFailed, with the end of what the program said (``place/log``)."""
        options, output, log = self._options, place / TREE_NAME, place / LOG_NAME
        await anyio.Path(output).mkdir(mode=0o755)
        with anyio.move_on_after(options.deadline_s) as late:
            code = await self._run(output, inputs, log)
        if late.cancelled_caught:
            raise self._failed(f"took longer than deadline_s = {options.deadline_s:g}", log)
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise self._failed(how, log)
        if await anyio.Path(output).is_symlink() or not await anyio.Path(output).is_dir():
            raise self._failed("left no directory where its tree should be", log)

    async def _run(self, output: Path, inputs: Inputs, log: Path) -> int:
        """The program's exit status. However this ends, nothing of it lives on."""
        tether, held = os.pipe()
        runtime = f"{self._name}-build-{secrets.token_hex(4)}"
        process: anyio.abc.Process | None = None
        try:
            with log.open("wb") as said:
                process = await anyio.open_process(
                    ["/bin/sh", "-c", TETHER, str(tether), *self._command(output, inputs)],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    cwd=self._folder(),
                    env=self._environment(output, inputs, runtime),
                    start_new_session=True,
                    pass_fds=(tether,),
                )
            assert process.stdin is not None
            plan = {"output": str(output), "inputs": {name: dict(address) for name, address in inputs.items()}}
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it need not listen
                await process.stdin.send(msgspec.json.encode(plan))
            with contextlib.suppress(OSError):
                await process.stdin.aclose()
            return await process.wait()
        except OSError as error:
            raise self._failed(f"can't be started: {error}", log) from error
        finally:
            os.close(tether)
            with anyio.CancelScope(shield=True):
                await self._end(process, held, runtime)

    async def _end(self, process: anyio.abc.Process | None, held: int, runtime: str) -> None:
        """Kill the group, and what left the group, and join it."""
        os.close(held)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await process.aclose()
        wanted = marks(self._services.state, self._services.journal, runtime)
        await anyio.to_thread.run_sync(end_marked, wanted)

    def _command(self, output: Path, inputs: Inputs) -> list[str]:
        if self._options.call:
            return [sys.executable, "-m", "statefork.adapters.resources.derived.call", self._options.call]
        places = {"output": str(output)} | {name: str(a["path"]) for name, a in inputs.items() if "path" in a}
        command = []
        for word in self._options.command:
            for name, place in places.items():
                word = word.replace(f"{{{name}}}", place)
            command.append(word)
        return command

    def _folder(self) -> Path:
        return (self._services.base_dir / self._options.path).resolve()

    def _environment(self, output: Path, inputs: Inputs, runtime: str) -> dict[str, str]:
        found = {**os.environ, **self._options.environment}
        if self._options.path:
            found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._folder()), found.get("PYTHONPATH"))))
        found[OUTPUT_VARIABLE] = str(output)
        for name, address in inputs.items():
            if "path" in address:
                found[INPUT_VARIABLE + name.upper().replace("-", "_")] = str(address["path"])
        return found | marks(self._services.state, self._services.journal, runtime)

    def _failed(self, what: str, log: Path) -> ResourceFailed:
        tail = log_tail(log)
        program = self._options.call or self._options.command[0]
        return ResourceFailed(
            f"{self._name}: {program} {what}, so the tree could not be built",
            hint=f"It said:\n{tail}" if tail else "It said nothing",
            resource=self._name,
        )
