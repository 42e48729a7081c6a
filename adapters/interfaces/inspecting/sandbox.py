"""The sandbox provider ``statefork`` of Inspect: each sample works in an environment with a terminal.

::

    Task(dataset, solver, scorer, sandbox=("statefork", StateforkConfig(contract="box.toml")))

A sample's commands are actions of its environment (see the adapter ``shell``): journaled, and ended with all that they
started. The shape is inspect-ai's ``SandboxEnvironment`` (0.3.285). What does not fit is told in
``docs/how-to/use-with-inspect.md``.
"""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Any, Literal, overload

from anyio.to_thread import run_sync
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from statefork import sync
from statefork.adapters.interfaces.inspecting.engines import Engines
from statefork.adapters.interfaces.views import Seen
from statefork.adapters.resources.shell.actions import TIMEOUT_MS_MAX, Run
from statefork.adapters.resources.shell.options import OUTPUT_BYTES_MAX
from statefork.engine.errors import ActionFailed

ENGINES = Engines()
_GRACE_S = 30.0  # what the engine allows an action beyond the command's own deadline
_ELSEWHERE = ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"']  # an absolute directory is one of the sandbox's own
_WRITE = ["/bin/sh", "-c", 'mkdir -p -- "$(dirname -- "$0")" && cat > "$0"']
_READ = ["/bin/sh", "-c", 'exec cat -- "$0"']
_FAULTS: dict[str, type[OSError]] = {
    "Is a directory": IsADirectoryError,
    "No such file": FileNotFoundError,
    "Permission denied": PermissionError,
    "Not a directory": NotADirectoryError,
}


class StateforkConfig(BaseModel, frozen=True):
    """What a task says of its sandboxes.

    ``contract``: a path, or the name of a world, that has a resource with the adapter ``shell``. ``state``: the state
    directory. ``at``: the ref from which each sample's environment is forked; empty: it is made new. ``keep``: leave
    the environments parked when their samples end, and not retired.
    """

    contract: str
    state: str = "./state"
    at: str = ""
    keep: bool = False


def _config(given: Any) -> StateforkConfig:
    if isinstance(given, StateforkConfig):
        return given
    if isinstance(given, str):
        return StateforkConfig(contract=given)
    raise ValueError('the sandbox "statefork" needs a contract: sandbox=("statefork", "box.toml"), or StateforkConfig')


def _place(config: StateforkConfig) -> tuple[str, Path]:
    return config.contract, Path(config.state).absolute()


@sandboxenv(name="statefork")
class StateforkSandbox(SandboxEnvironment):
    """One sample's environment; ``environment`` is the handle itself, without ``await``."""

    def __init__(self, engine: sync.Engine, environment: sync.Environment) -> None:
        super().__init__()
        self._engine = engine
        self.environment = environment

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """From a log."""
        return StateforkConfig(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Open the engine."""
        await run_sync(ENGINES.hold, *_place(_config(config)))

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Close it with the last task that uses it: what is left is parked."""
        await run_sync(ENGINES.release, *_place(_config(config)))

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """An environment of the sample's own. The sample's metadata may name another ref: ``statefork_at``."""
        config = _config(config)
        engine = ENGINES.get(*_place(config))
        at = metadata.get("statefork_at") or config.at
        name = f"sample-{secrets.token_hex(6)}"

        def made() -> sync.Environment:
            return engine.fork(at, names=[name])[0] if at else engine.create(name)

        return {"default": cls(engine, await run_sync(made))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Retire them, or park them where they are to be kept."""
        keep = _config(config).keep
        for one in environments.values():
            environment = one.as_type(StateforkSandbox).environment
            await run_sync(environment.park if keep else environment.retire)

    async def fork(self, count: int = 1) -> list[StateforkSandbox]:
        """Children of this moment: their files are what they are here now. The caller retires their environments."""
        children = await run_sync(lambda: self._engine.fork(self.environment.name, n=count))
        return [StateforkSandbox(self._engine, child) for child in children]

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - the name is Inspect's
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command as an action. A command that was killed at its deadline is not tried again: it did something.

        Raises TimeoutError, SandboxUserUnsupportedError.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(f"commands run as the environment's own user, not as {user!r}")
        seen = await self._run(cmd, stdin=input, cwd=cwd, env=env, timeout_s=timeout)
        value: Any = seen.value
        stdout, stderr = (seen.part(name).decode(errors="replace") for name in ("stdout", "stderr"))
        return ExecResult(success=value["status"] == 0, returncode=value["status"], stdout=stdout, stderr=stderr)

    async def _run(
        self,
        cmd: list[str],
        *,
        stdin: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: int | None = None,
    ) -> Seen:
        if cwd is not None and cwd.startswith("/"):
            cmd, cwd = [*_ELSEWHERE, cwd, *cmd], None
        given = stdin.encode() if isinstance(stdin, str) else stdin or b""
        action = Run(
            cmd,
            stdin=base64.b64encode(given).decode(),
            stdin_encoding="base64",
            cwd=cwd or "",
            environment=env or {},
            timeout_ms=TIMEOUT_MS_MAX if timeout_s is None else min(TIMEOUT_MS_MAX, timeout_s * 1000),
        )
        deadline_s = action.timeout_ms / 1000 + _GRACE_S
        try:
            return await run_sync(lambda: self.environment.act(action, timeout_s=deadline_s))
        except ActionFailed as error:
            if "was killed" in error.message:
                raise TimeoutError(error.message) from error
            raise

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, as the sandbox's user; directories are made. Raises IsADirectoryError, PermissionError."""
        seen = await self._run([*_WRITE, file], stdin=contents)
        _check(seen, file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as the sandbox's user.

        Raises FileNotFoundError, IsADirectoryError, PermissionError, UnicodeDecodeError, OutputLimitExceededError.
        """
        seen = await self._run([*_READ, file])
        _check(seen, file)
        data = seen.part("stdout")
        value: Any = seen.value
        if value.get("truncated"):
            raise OutputLimitExceededError(str(OUTPUT_BYTES_MAX), None)
        return data.decode() if text else data


def _check(seen: Seen, file: str) -> None:
    value: Any = seen.value
    if value["status"] == 0:
        return
    said = str(value["stderr"]).strip()
    kind = next((kind for words, kind in _FAULTS.items() if words in said), OSError)
    raise kind(f"{file}: {said}")
