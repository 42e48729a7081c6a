"""One command of an agent, from its start to the end of everything that it started.

It runs below a keeper (see process.keeper), which ends whatever is left when the command has ended, or when this task
is cancelled, or when the engine is killed: so nothing works in the tree between two actions.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from statefork.adapters.resources.common import in_thread
from statefork.adapters.resources.process import keeper
from statefork.adapters.resources.process.accounts import Account
from statefork.adapters.resources.process.cgroups import Leaf
from statefork.adapters.resources.process.networks import Network
from statefork.adapters.resources.process.standing import Standing, end_standing, put_standing, who


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, as whom, and where."""

    words: list[str]
    stdin: bytes
    environment: Mapping[str, str]
    marks: Mapping[str, str]
    tree: Path
    directory: str  # in which it runs, as it sees that
    workplace: Path  # the branch's: what is temporary and the record lie in it
    output_bytes_max: int
    leaf: Leaf | None = None
    account: Account | None = None
    processes_max: int = 0
    alone_in_network: bool = False

    @property
    def temporary(self) -> Path:
        """A directory that is empty at each start."""
        return self.workplace / "run"

    @property
    def homes(self) -> Path:
        """What stands in the place of ``/home``, where it has mounts of its own."""
        return self.workplace / "homes"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended, and what it said."""

    status: int  # 128 plus the signal's number, where it was ended by one
    stdout: bytes
    stderr: bytes
    truncated: bool  # there was more


class _Output:
    """One of the two, up to a limit; the rest is read and forgotten."""

    def __init__(self, bytes_max: int) -> None:
        self.kept = bytearray()
        self.more = False
        self._bytes_max = bytes_max

    async def read(self, stream: ByteReceiveStream) -> None:
        async for chunk in stream:
            room = self._bytes_max - len(self.kept)
            self.kept += chunk[:room]
            self.more = self.more or len(chunk) > room


async def run(command: Command) -> Ended:
    """Run it to its end. When cancelled everything is killed, and has ended when this returns. Raises OSError."""
    network = await in_thread(_prepare, command)
    try:
        out, err = _Output(command.output_bytes_max), _Output(command.output_bytes_max)
        process = await _started(network)
        try:
            await in_thread(put_standing, command.workplace, _standing(command, process.pid))
            assert process.stdin is not None
            await process.stdin.send(json.dumps(_plan(command, network)).encode() + b"\n")
            async with anyio.create_task_group() as tasks:
                assert process.stdout is not None
                assert process.stderr is not None
                tasks.start_soon(out.read, process.stdout)
                tasks.start_soon(err.read, process.stderr)
            status = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
        await in_thread(_check_moved_in, command)
        return Ended(status=status, stdout=bytes(out.kept), stderr=bytes(err.kept), truncated=out.more or err.more)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(_clear, command, network)


async def _started(network: Network | None) -> Process:
    return await anyio.open_process(
        [sys.executable, "-I", "-S", keeper.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={},
        start_new_session=True,
        pass_fds=(network.descriptor,) if network is not None else (),
    )


async def _end(process: Process) -> None:
    """The keeper kills all, and ends itself, when its input is closed."""
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await process.stdin.aclose()
    await process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _prepare(command: Command) -> Network | None:
    """Its leaf, its network, its empty directory, and what it reads."""
    put_standing(command.workplace, _standing(command, 0))
    if command.leaf is not None:
        command.leaf.make(command.processes_max)
    _emptied(command.temporary)
    command.temporary.mkdir(mode=0o700)
    (command.homes / keeper.HOME).mkdir(parents=True, exist_ok=True)
    stdin = command.workplace / "stdin"
    stdin.write_bytes(command.stdin)
    if command.account is not None:
        os.chown(command.temporary, command.account.uid, command.account.gid)
        os.chown(stdin, command.account.uid, command.account.gid)
    return Network() if command.alone_in_network else None


def _clear(command: Command, network: Network | None) -> None:
    if network is not None:
        network.close()
    end_standing(command.workplace, kept=True)
    for name in ("stdin", "failed"):
        (command.workplace / name).unlink(missing_ok=True)
    _emptied(command.temporary)


def _emptied(place: Path) -> None:
    """Remove it with all that is in it, however deep that is: ``rm`` knows no bound, and Python's own does."""
    subprocess.run(["rm", "-rf", "--", str(place)], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _check_moved_in(command: Command) -> None:
    """Raise OSError where it was not even begun: its place, its user or its network could not be had."""
    with contextlib.suppress(FileNotFoundError):
        raise OSError((command.workplace / "failed").read_text())


def _standing(command: Command, keeper_pid: int) -> Standing:
    leaf = str(command.leaf.path) if command.leaf is not None else ""
    return Standing(engine=who(os.getpid()), keeper=who(keeper_pid), leaf=leaf, marks=dict(command.marks))


def _plan(command: Command, network: Network | None) -> dict[str, object]:
    account = command.account
    alone = account is not None and account.alone
    return {
        "command": command.words,
        "environment": {**command.environment, **command.marks},
        "directory": command.directory,
        "leaf": str(command.leaf.path) if command.leaf is not None else "",
        "uid": account.uid if account is not None else None,
        "gid": account.gid if account is not None else None,
        "alone": alone,
        "processes_max": command.processes_max,
        "network": network.descriptor if network is not None else -1,
        "stop_signal": 15,
        "stdin": str(command.workplace / "stdin") if command.stdin else "",
        "temporary": str(command.temporary) if alone else "",
        "failed": str(command.workplace / "failed"),
        "homes": str(command.homes),
        "tree": str(command.tree),
    }
