"""A directory of rollouts: each is there whole or not at all, whenever the writer is killed.

::

    OUT/rollout.json         which run this is: its policy, world and tasks, and how its environments are called
    OUT/parts/TASK-N.json    one rollout, one line; it appears under this name when it is whole and on the disk
    OUT/trajectories.jsonl   all of them, in the order of the tasks; replaced as a whole
    OUT/best.jsonl           of each task the best, where there are several of each
    OUT/lock                 held by whoever writes
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from statefork.adapters.interfaces.rollout.errors import RolloutsDiffer
from statefork.adapters.interfaces.rollout.trajectory import Trajectory
from statefork.adapters.resources.ledger import sync_file, write_whole

TRAJECTORIES, BEST = "trajectories.jsonl", "best.jsonl"
_RUN, _PARTS, _LOCK = "rollout.json", "parts", "lock"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be the same where a run goes on."""

    name: str  # how its environments' names begin
    policy: str
    world: str
    tasks: str  # their digest
    at: str = ""  # the moment from which each begins


class Kept:
    """The rollouts of one directory. Made by :func:`opened`."""

    def __init__(self, out: Path, run: Run) -> None:
        self.out = out
        self.run = run
        self._parts = out / _PARTS
        self._rewards: dict[str, tuple[float, int]] = {}  # by id: reward and steps
        for path in self._parts.glob("*.partial"):
            path.unlink(missing_ok=True)
        for path in self._parts.glob("*.json"):
            record = json.loads(path.read_bytes())
            self._rewards[str(record["id"])] = (float(record["reward"]), len(record["steps"]))

    def has(self, task: str, attempt: int) -> bool:
        """Whether this rollout is complete."""
        return f"{task}/{attempt}" in self._rewards

    @property
    def rewards(self) -> list[float]:
        """Of all that are complete."""
        return [reward for reward, _ in self._rewards.values()]

    def put(self, trajectory: Trajectory) -> None:
        """Keep one; it is on the disk when this returns."""
        write_whole(self._part(trajectory.task, trajectory.attempt), trajectory.line(), force=True)
        sync_file(self._parts)
        self._rewards[trajectory.id] = (trajectory.reward, len(trajectory.steps))

    def _part(self, task: str, attempt: int) -> Path:
        return self._parts / f"{quote(task, safe='')}-{attempt}.json"

    def gather(self, tasks: Sequence[str], attempts: int) -> None:
        """Put all that is complete into one file, and the best of each task into another."""
        there = [(task, attempt) for task in tasks for attempt in range(1, attempts + 1) if self.has(task, attempt)]
        self._write(TRAJECTORIES, there)
        if attempts > 1:
            self._write(BEST, list(self._best(there)))

    def _best(self, there: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        for task in dict.fromkeys(task for task, _ in there):
            yield min((one for one in there if one[0] == task), key=self._worth)

    def _worth(self, one: tuple[str, int]) -> tuple[float, int, int]:
        reward, steps = self._rewards[f"{one[0]}/{one[1]}"]
        return -reward, steps, one[1]

    def _write(self, name: str, which: Sequence[tuple[str, int]]) -> None:
        partial = self.out / f"{name}.{secrets.token_hex(4)}.partial"
        try:
            with partial.open("wb") as file:
                for task, attempt in which:
                    file.write(self._part(task, attempt).read_bytes())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.out / name)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def opened(out: Path, *, policy: str, world: str, tasks: str, at: str = "") -> Iterator[Kept]:
    """A directory to keep rollouts in, made or gone on with. Raises RolloutsDiffer."""
    try:
        (out / _PARTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if isinstance(error, FileExistsError | NotADirectoryError) else f"can't be made: {error}"
        raise RolloutsDiffer(f"{out} {why}", hint="Choose another --out", out=str(out)) from error
    with (out / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RolloutsDiffer(f"another run writes to {out}", hint="Wait for it, or choose another --out") from None
        for path in out.glob("*.partial"):
            path.unlink(missing_ok=True)
        yield Kept(out, _run(out, {"policy": policy, "world": world, "tasks": tasks, "at": at}))


def _run(out: Path, now: dict[str, str]) -> Run:
    file = out / _RUN
    if not file.exists():
        run = Run(name=f"r{secrets.token_hex(3)}", **now)
        write_whole(file, msgspec.json.encode(run) + b"\n", force=True)
        return run
    run = msgspec.json.decode(file.read_bytes(), type=Run)
    differ = [key for key, value in now.items() if getattr(run, key) != value]
    if differ:
        told = {"policy": f"the policy {run.policy}", "world": f"the world {run.world}", "tasks": "another task file"}
        told["at"] = f"the moment {run.at}" if run.at else "new environments"
        raise RolloutsDiffer(
            f"{out} has rollouts of {' and '.join(told[key] for key in differ)}",
            hint="Choose another --out, or give the same again to go on with them",
            out=str(out),
        )
    return run
