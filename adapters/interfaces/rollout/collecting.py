"""Many rollouts: every task so often, so many environments at once; what is complete is kept, and never done again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from statefork.adapters.interfaces.rollout.judging import Judge
from statefork.adapters.interfaces.rollout.keeping import Kept, opened
from statefork.adapters.interfaces.rollout.running import STEPS_MAX, retired, run
from statefork.adapters.interfaces.rollout.tasks import Task, digest_of
from statefork.engine.refs import as_ref
from statefork.journal.errors import StateforkError

if TYPE_CHECKING:
    from statefork.adapters.interfaces.python import Engine

GATHER_EVERY_S = 5.0
"""How often all that is complete is put into one file while others are under way."""

Tell = Callable[[int, int, float], None]
"""Called with how many rollouts are complete, of how many, and the mean of their rewards."""

_logger = logging.getLogger(__name__)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that could not be completed; another run tries it again."""

    task: str
    attempt: int
    code: str
    message: str


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did. ``skipped``: rollouts that were complete before it began."""

    wanted: int
    done: int
    skipped: int
    failed: tuple[Failure, ...] = ()
    reward: float = 0.0  # the mean of all that are complete
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every rollout is there."""
        return not self.failed and self.done + self.skipped == self.wanted


def nobody_looks(_done: int, _of: int, _reward: float) -> None:
    """For whoever does not want to know."""


async def collect(
    engine: Engine,
    tasks: Sequence[Task],
    policy: Any,
    judge: Judge,
    out: Path | str,
    *,
    policy_name: str = "",
    at_once: int = 8,
    attempts: int = 1,
    steps_max: int = STEPS_MAX,
    at: str = "",
    tell: Tell = nobody_looks,
) -> Collected:
    """Roll out every task ``attempts`` times, ``at_once`` environments side by side, into a directory.

    Given again after it was killed it goes on: what is complete is skipped, and what a killed run left is retired.
    A rollout that fails is told, and keeps no other; ``policy_name`` tells policies apart (else by where they are
    defined). With ``at``, a ref, each begins as a fork of that moment. Raises RolloutsDiffer, UnknownRef.
    """
    named = (
        policy_name or f"{getattr(policy, '__module__', '')}:{getattr(policy, '__qualname__', type(policy).__name__)}"
    )
    digest = digest_of(tasks)
    with opened(Path(out), policy=named, world=engine.kernel.contract.name, tasks=digest, at=at) as kept:
        if at:
            engine.environment(as_ref(at).env)  # told at once, and not by every rollout
        collecting = _Collecting(engine, tasks, policy, judge, kept, attempts, steps_max, at, tell)
        return await collecting.all(at_once)


class _Collecting:
    def __init__(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        policy: Any,
        judge: Judge,
        kept: Kept,
        attempts: int,
        steps_max: int,
        at: str,
        tell: Tell,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._policy = policy
        self._judge = judge
        self._kept = kept
        self._attempts = attempts
        self._options: dict[str, Any] = {"steps_max": steps_max, "at": at}
        self._tell = tell
        self._failed: list[Failure] = []
        self._done = 0
        self._writing = anyio.Lock()
        self._gathered = time.monotonic()

    async def all(self, at_once: int) -> Collected:
        """Everything that is not there yet."""
        began = time.monotonic()
        await self._retire_left()
        missing = [one for one in self._wanted() if not self._kept.has(one[1].id, one[2])]
        of = len(self._tasks) * self._attempts
        skipped = of - len(missing)
        self._told(skipped, of)
        limiter = anyio.CapacityLimiter(at_once)

        async def one(place: int, task: Task, attempt: int) -> None:
            async with limiter:
                await self._one(f"{self._kept.run.name}-{place}-{attempt}", task, attempt)
            self._told(skipped + self._done, of)

        try:
            async with anyio.create_task_group() as tasks:
                for place, task, attempt in missing:
                    tasks.start_soon(one, place, task, attempt)
        finally:
            self._gather()
        rewards = self._kept.rewards
        return Collected(
            wanted=of,
            done=self._done,
            skipped=skipped,
            failed=tuple(self._failed),
            reward=round(sum(rewards) / len(rewards), 4) if rewards else 0.0,
            seconds=round(time.monotonic() - began, 1),
        )

    def _wanted(self) -> Iterator[tuple[int, Task, int]]:
        """First every task once, so that all tasks have something early."""
        for attempt in range(1, self._attempts + 1):
            for place, task in enumerate(self._tasks, 1):
                yield place, task, attempt

    async def _retire_left(self) -> None:
        """Environments of rollouts that a killed run did not complete."""
        for env in self._engine.environments():
            if env.name.startswith(f"{self._kept.run.name}-"):
                await retired(env)

    async def _one(self, name: str, task: Task, attempt: int) -> None:
        try:
            trajectory = await run(
                self._engine, task, self._policy, self._judge, name=name, attempt=attempt, **self._options
            )
            async with self._writing:
                await anyio.to_thread.run_sync(self._kept.put, trajectory)
        except StateforkError as error:
            _logger.debug("rollout %s/%d", task.id, attempt, exc_info=True)
            self._failed.append(Failure(task=task.id, attempt=attempt, code=error.code, message=error.message))
            return
        self._done += 1
        async with self._writing:
            if time.monotonic() - self._gathered >= GATHER_EVERY_S:
                await anyio.to_thread.run_sync(self._gather)

    def _gather(self) -> None:
        self._kept.gather([task.id for task in self._tasks], self._attempts)
        self._gathered = time.monotonic()

    def _told(self, done: int, of: int) -> None:
        rewards = self._kept.rewards
        self._tell(done, of, sum(rewards) / len(rewards) if rewards else 0.0)
