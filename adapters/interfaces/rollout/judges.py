"""Which judge a name means: the plain one, WebArena's own evaluators in a process, or somebody's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from statefork.adapters.interfaces.rollout.errors import PolicyFailed
from statefork.adapters.interfaces.rollout.judging import Judge, PlainJudge
from statefork.adapters.interfaces.rollout.policies import load_policy, made
from statefork.adapters.interfaces.rollout.tasks import Task
from statefork.adapters.interfaces.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment

PLAIN, WEBARENA = "plain", "webarena"


@asynccontextmanager
async def chosen(name: str, tasks: Sequence[Task]) -> AsyncIterator[Judge]:
    """The judge of that name, as long as the body runs. Raises PolicyFailed where it can't judge one of the tasks."""
    if name == PLAIN:
        plain = PlainJudge()
        for task in tasks:
            plain.check(task)
        yield plain
    elif name == WEBARENA:
        async with _evaluators(tasks) as judge:
            yield judge
    elif ":" in name:
        own: Judge = made(load_policy(name))
        yield own
    else:
        raise PolicyFailed(f"there is no judge {name!r}", hint=f"Give {PLAIN}, {WEBARENA}, or module:name")


@asynccontextmanager
async def _evaluators(tasks: Sequence[Task]) -> AsyncIterator[Judge]:
    from statefork.adapters.interfaces import webarena

    known: dict[str, webarena.Task] = {}
    for file in dict.fromkeys(task.file for task in tasks):
        known |= webarena.load_tasks(file)
    async with webarena.Evaluators() as evaluators:

        async def judge(task: Task, env: Environment, trajectory: Trajectory, /) -> float:
            return await evaluators.evaluate(env, known[task.id], trajectory.answer)

        yield judge
