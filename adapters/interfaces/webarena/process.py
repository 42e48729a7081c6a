"""The evaluators' processes, seen from the engine: one for a package, a fork of it for each evaluation."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream

from statefork.adapters.interfaces.webarena import worker
from statefork.adapters.interfaces.webarena.errors import EvaluatorFailed, EvaluatorTimeout
from statefork.engine.errors import MissingDependency

START_S = 120.0
"""How long the interpreter may take to import a package: 4 s and 6 s on an idle machine of two cores."""

SAID_BYTES_MAX = 4_000
_ROUNDS_MAX = 20
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "NLTK_DATA", "LD_LIBRARY_PATH", "PLAYWRIGHT_BROWSERS_PATH")
"""What evaluators get of this process's variables. Keys of models and proxies are not among them."""

_LOOK = """
from importlib.util import find_spec
if not (find_spec("webarena") or find_spec("visualwebarena")):
    raise SystemExit("No module named 'webarena'")
"""
"""Nothing is imported: that takes seconds."""


class Workers:
    """The process that has one package imported, and what it forks. ``environment``: further variables for all."""

    def __init__(self, python: str, package: str, environment: Mapping[str, str]) -> None:
        self._python = python
        self._package = package
        self._environment = _environment() | dict(environment)
        self.place = Path(tempfile.mkdtemp(prefix="statefork-webarena-"))
        self._process: anyio.abc.Process | None = None
        self._starting = anyio.Lock()
        self._numbers = 0

    async def judge(self, request: Mapping[str, Any], config: str, deadline_s: float) -> float:
        """The score of one evaluation. Raises EvaluatorFailed, EvaluatorTimeout, MissingDependency."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
        self._numbers += 1
        place = self.place / str(self._numbers)
        place.mkdir()
        try:
            (place / "task.json").write_text(config, encoding="utf-8")
            answer = await self._asked({**request, "place": str(place)}, deadline_s, place)
            if "score" in answer:
                return float(answer["score"])
            told = answer["error"]
            raise EvaluatorFailed(
                f"the evaluator of {request['task']} raised {told['type']}: {told['message'].strip()}",
                traceback=told["traceback"],
                said=_said(place),
                task=request["task"],
                error=told["type"],
            )
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(place, ignore_errors=True))

    async def _asked(self, request: Mapping[str, Any], deadline_s: float, place: Path) -> dict[str, Any]:
        evaluator: psutil.Process | None = None
        answer: dict[str, Any] = {}
        try:
            with anyio.move_on_after(deadline_s):
                async with await anyio.connect_unix(self.place / "door") as stream:
                    lines = BufferedByteReceiveStream(stream)
                    evaluator = psutil.Process((await _line(lines))["pid"])
                    await stream.send(json.dumps(request).encode() + b"\n")
                    answer = await _line(lines)
                    return answer
            raise EvaluatorTimeout(
                f"the evaluator of {request['task']} did not answer within {deadline_s:g} s, and was killed",
                hint="The environment goes on; give evaluations more time with deadline_s",
                said=_said(place),
                task=request["task"],
                deadline_s=deadline_s,
            )
        except (
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.BrokenResourceError,
            OSError,
            psutil.NoSuchProcess,
        ) as error:
            raise EvaluatorFailed(
                f"the evaluator's process of {request['task']} died without an answer",
                hint="The environment goes on",
                said=_said(place),
                task=request["task"],
            ) from error
        finally:
            if not answer:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_end, evaluator, place)

    async def _start(self) -> None:
        door = self.place / "door"
        door.unlink(missing_ok=True)
        log = self.place / "worker.log"
        with log.open("wb") as errors:
            try:
                self._process = await anyio.open_process(
                    [self._python, worker.__file__, str(door), self._package],
                    env=self._environment,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C in a terminal is for the engine, which ends this one
                )
            except OSError as error:
                raise _missing(self._python, self._package, str(error)) from None
        assert self._process.stdout is not None
        said = b""
        with anyio.move_on_after(START_S):
            async for chunk in self._process.stdout:
                said += chunk
                if said.endswith(b"ready\n"):
                    return
        await self.aclose(remove=False)
        raise _missing(self._python, self._package, log.read_text(errors="replace").strip()[-SAID_BYTES_MAX:])

    async def aclose(self, *, remove: bool = True) -> None:
        """End the process and all that it has forked. Idempotent."""
        with anyio.CancelScope(shield=True):
            if self._process is not None:
                with suppress(psutil.NoSuchProcess):
                    _kill(psutil.Process(self._process.pid))
                await self._process.aclose()
                self._process = None
            if remove:
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(self.place, ignore_errors=True))


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


async def check_interpreter(python: str) -> None:
    """Look whether there is such an interpreter, and any evaluators in it. Raises MissingDependency."""
    try:
        found = await anyio.run_process([python, "-c", _LOOK], check=False, env=_environment())
    except OSError as error:
        raise _missing(python, "webarena", str(error)) from None
    if found.returncode:
        raise _missing(python, "webarena", found.stderr.decode(errors="replace").strip()[-SAID_BYTES_MAX:])


def _missing(python: str, package: str, told: str) -> MissingDependency:
    last = told.splitlines()[-1] if told else "it said nothing"
    return MissingDependency(
        f"{python} can't run the evaluators of {package}: {last}",
        hint=f"Make a virtual environment with lib{package} (docs/how-to/use-with-webarena.md) and name its "
        "python, or set STATEFORK_WEBARENA_PYTHON",
        package=package,
    )


async def _line(stream: BufferedByteReceiveStream) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await stream.receive_until(b"\n", _ANSWER_BYTES_MAX))
    return answer


def _said(place: Path) -> str:
    """The last of what an evaluator printed."""
    with suppress(OSError):
        return (place / "said.txt").read_text(errors="replace")[-SAID_BYTES_MAX:]
    return ""


def _end(evaluator: psutil.Process | None, place: Path) -> None:
    """End what did not come to its end by itself, also a browser that was being started just now."""
    if evaluator is not None:
        _kill(evaluator)
    for _ in range(_ROUNDS_MAX):
        left = [process for process in psutil.process_iter() if _is_of(process, place)]
        if not left:
            return
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=1)


def _is_of(process: psutil.Process, place: Path) -> bool:
    """Whether a process has an evaluation's folder for its temporary files, as all that one starts have."""
    try:
        return bool(process.environ().get("TMPDIR") == str(place))
    except (psutil.Error, OSError):
        return False


def _kill(process: psutil.Process) -> None:
    """End a process and all that it has started (its browser has a process group of its own), if it still runs."""
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
