"""One rollout: an environment, the page that the task begins at, actions until the policy stops, the judge's word."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

from statefork.adapters.interfaces.rollout.calling import asked, raised
from statefork.adapters.interfaces.rollout.errors import PolicyFailed
from statefork.adapters.interfaces.rollout.judging import Judge
from statefork.adapters.interfaces.rollout.policies import Observed, Stop, decided, made
from statefork.adapters.interfaces.rollout.tasks import Task
from statefork.adapters.interfaces.rollout.trajectory import Look, Step, Trajectory
from statefork.adapters.interfaces.views import Seen
from statefork.engine.errors import ActionFailed, ActionTimeout, EnvironmentExists, InvalidAction
from statefork.engine.staging import first_failure
from statefork.journal.errors import StateforkError
from statefork.journal.values import Json

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment
    from statefork.adapters.interfaces.python import Engine

STEPS_MAX = 30
RETIRE_S = 30.0
SEVERAL_PAGES = " |AND| "
"""Between the addresses of a task that begins with several pages, as WebArena has it."""

_NAMES_MAX = 10_000


class Play:
    """What was done so far in one environment. ``goes_on`` is the same in a child of it."""

    def __init__(self, env: Environment, task: Task, attempt: int = 1) -> None:
        self.env = env
        self.task = task
        self.attempt = attempt
        self.origin = str(env.ref)
        self.first = Look()
        self.steps: tuple[Step, ...] = ()
        self._began = time.monotonic()

    def goes_on(self, child: Environment) -> Play:
        """In a child of the present."""
        play = Play(child, self.task, self.attempt)
        play.origin, play.first, play.steps, play._began = self.origin, self.first, self.steps, self._began
        return play

    async def begin(self) -> None:
        """Open the pages that the task begins at, of several each in a tab, and look at the first.

        Raises ActionFailed where the world has none there, InvalidAction where it has no pages.
        """
        try:
            await self._open()
        except (ActionFailed, ActionTimeout, InvalidAction) as error:
            error.message = f"the task's start_url {self.task.start_url!r} can't be opened: {error.message}"
            raise

    async def _open(self) -> None:
        first, *others = self.task.start_url.split(SEVERAL_PAGES)
        if first:
            seen = await self.env.act({"type": "goto", "url": first})
        else:
            seen = await self.env.observe()
        for url in others:
            await self.env.act({"type": "new_tab", "url": url})
        if others:
            seen = await self.env.act({"type": "switch_tab", "tab": 0})
        self.first = _look(seen)

    async def act(self, action: Mapping[str, Json]) -> Step:
        """Do one action; what the world, or the action's form, said no to is told in the step."""
        last = self.steps[-1].seen if self.steps else self.first
        before = self.env.capsule.actions
        outcome, error, look, number = "ok", "", last, 0
        try:
            seen = await self.env.act(action)
        except InvalidAction as refused:
            outcome, error = "invalid", f"{refused.message}. {refused.hint}".rstrip(". ")
        except ActionFailed as failed:
            outcome, error, number = "failed", failed.message, self.env.capsule.actions
            look = _look(failed.seen) if failed.seen is not None else last
        except ActionTimeout as late:
            outcome, error, number = "unknown", late.message, self.env.capsule.actions
        else:
            look, number = _look(seen), seen.number
        ref = f"{self.env.name}#{number}" if number > before else ""
        step = Step(action=dict(action), outcome=outcome, seen=look, number=number, ref=ref, error=error)
        self.steps += (step,)
        return step

    def observed(self) -> Observed:
        """What a policy is shown now."""
        last = self.steps[-1] if self.steps else None
        return Observed(
            last.seen if last is not None else self.first,
            self.env.blobs,
            task=self.task.id,
            attempt=self.attempt,
            error=last.error if last is not None else "",
        )

    def told(self, answer: str = "", stopped: str = "", *, end: str = "", reward: float = 0.0) -> Trajectory:
        """All of it."""
        return Trajectory(
            task=self.task.id,
            goal=self.task.goal,
            attempt=self.attempt,
            env=self.env.name,
            contract=self.env.kernel.contract.digest,
            origin=self.origin,
            end=end,
            first=self.first,
            steps=self.steps,
            answer=answer,
            stopped=stopped,
            reward=reward,
            seconds=round(time.monotonic() - self._began, 3),
        )

    async def judged(self, judge: Judge, answer: str, stopped: str) -> Trajectory:
        """All of it, with what it is worth. The present is published, so that it can be forked later."""
        try:
            reward = float(await asked(judge, self.task, self.env, self.told(answer, stopped)))
        except StateforkError:
            raise
        except Exception as error:
            raise PolicyFailed(
                f"the judge raised at {self.task.id}/{self.attempt}: {raised(error)}",
                task=self.task.id,
                attempt=self.attempt,
            ) from error
        end = await self.env.snapshot()
        return self.told(answer, stopped, end=str(end), reward=reward)


def _look(seen: Seen) -> Look:
    return Look(
        url=seen.url, title=seen.title, text=seen.text, screenshot=seen.observation.screenshot or "", value=seen.value
    )


async def run(
    engine: Engine,
    task: Task,
    policy: Any,
    judge: Judge,
    *,
    name: str,
    attempt: int = 1,
    steps_max: int = STEPS_MAX,
    at: str = "",
) -> Trajectory:
    """One rollout in a new environment, which is retired afterwards; its moments can still be forked.

    ``name`` is what the environment is called; where that is taken, with a number behind it. With ``at``, a ref, it is
    a fork of that moment: logged in, say. Raises PolicyFailed, what the judge raises, UnknownRef, Diverged, and what
    keeps an engine from going on.
    """
    decide = made(policy)
    async with _lent(engine, name, at) as env:
        play = Play(env, task, attempt)
        await play.begin()
        for _ in range(steps_max):
            decision = await decided(decide, task.goal, play.observed(), play.steps)
            if isinstance(decision, Stop):
                return await play.judged(judge, decision.answer, "policy")
            await play.act(decision)
        return await play.judged(judge, "", "steps_max")


async def best_of(
    engine: Engine,
    task: Task,
    policy: Any,
    judge: Judge,
    n: int,
    *,
    name: str,
    steps_max: int = STEPS_MAX,
    at: str = "",
) -> list[Trajectory]:
    """``n`` rollouts of one task side by side, the best first; of equals the one with fewer steps, then the earlier."""
    found: list[Trajectory] = []

    async def one(attempt: int) -> None:
        more: dict[str, Any] = {"attempt": attempt, "steps_max": steps_max, "at": at}
        found.append(await run(engine, task, policy, judge, name=f"{name}-{attempt}", **more))

    try:
        async with anyio.create_task_group() as tasks:
            for attempt in range(1, n + 1):
                tasks.start_soon(one, attempt)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None
    return sorted(found, key=worth)


def worth(trajectory: Trajectory) -> tuple[float, int, int]:
    """The smaller, the better."""
    return -trajectory.reward, len(trajectory.steps), trajectory.attempt


@asynccontextmanager
async def _lent(engine: Engine, name: str, at: str) -> AsyncIterator[Environment]:
    env = await created(engine, name, at)
    try:
        yield env
    finally:
        await retired(env)


async def created(engine: Engine, name: str, at: str = "") -> Environment:
    """A new environment of that name, or, where it is taken, with a number behind it; with ``at`` a fork of that."""
    for number in range(1, _NAMES_MAX):
        with suppress(EnvironmentExists):  # of a try that was cut off: a name is never used twice
            called = name if number == 1 else f"{name}-t{number}"
            return (await engine.fork(at, names=[called]))[0] if at else await engine.create(called)
    raise AssertionError(f"{name} was tried {_NAMES_MAX} times")


async def retired(env: Environment) -> None:
    """End an environment, whatever else ends. What is in its way is left to the next opening."""
    with anyio.move_on_after(RETIRE_S, shield=True), suppress(StateforkError):
        await env.retire()
