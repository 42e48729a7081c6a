"""Tree search over forks: from one moment several actions are tried, each in a child, and the best children go on.

A child has all that its parent has: rows, files, logins, and the page with what was typed into it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from statefork.adapters.interfaces.rollout.calling import asked, raised
from statefork.adapters.interfaces.rollout.errors import PolicyFailed
from statefork.adapters.interfaces.rollout.judging import Judge
from statefork.adapters.interfaces.rollout.policies import Decision, Observed, Stop, plain
from statefork.adapters.interfaces.rollout.running import Play, created, retired, worth
from statefork.adapters.interfaces.rollout.tasks import Task
from statefork.adapters.interfaces.rollout.trajectory import Step, Trajectory
from statefork.engine.errors import PartialFork
from statefork.engine.staging import first_failure

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment
    from statefork.adapters.interfaces.python import Engine

Propose = Callable[[str, Observed, Sequence[Step]], "Sequence[Decision] | Awaitable[Sequence[Decision]]"]
"""What might be done next, the likeliest first; of those more than ``fan_out`` are not tried."""

Score = Callable[[Trajectory], "float | Awaitable[float]"]
"""How promising it is to go on from what was done so far: the more, the better."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found. ``best`` None: nothing that was tried came to a stop."""

    best: Trajectory | None
    tried: int  # actions
    ended: tuple[Trajectory, ...]  # all that came to a stop, the best first
    depth: int  # how many actions the longest way has

    @property
    def solved(self) -> bool:
        """Whether something is worth all that there is."""
        return self.best is not None and self.best.reward >= 1.0


async def tree_search(
    engine: Engine,
    task: Task,
    propose: Propose,
    score: Score,
    judge: Judge,
    *,
    name: str,
    fan_out: int = 3,
    depth_max: int = 8,
    keep: int = 2,
    enough: float = 1.0,
    at: str = "",
) -> Found:
    """Search for a way to do a task, breadth first: at each depth the ``keep`` most promising go on.

    From each of them up to ``fan_out`` actions are tried, each in a child of its own; who is not kept, and whoever has
    children, is retired at once, so that no more than ``keep * (fan_out + 1)`` environments live. It ends where
    something is worth ``enough``, at ``depth_max``, and where nothing is proposed any more. All that it made is retired
    then. With ``at``, a ref, it begins as a fork of that moment. Raises PolicyFailed, and what keeps an engine from
    going on.
    """
    search = _Search(engine, task, propose, score, judge, fan_out)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(search.retire_all)
        root = Play(search.own(await created(engine, name, at)), task)
        await root.begin()
        alive = [root]
        for _ in range(depth_max):
            grown = await search.grown(alive, enough)
            if grown is None:
                break
            alive = await search.pruned(grown, keep)
            if not alive:
                break
        return search.found()


class _Search:
    def __init__(self, engine: Engine, task: Task, propose: Propose, score: Score, judge: Judge, fan_out: int) -> None:
        self._engine = engine
        self._task = task
        self._propose = propose
        self._score = score
        self._judge = judge
        self._fan_out = fan_out
        self._owned: dict[str, Environment] = {}
        self._ended: list[Trajectory] = []
        self._tried = self._depth = 0

    def own(self, env: Environment) -> Environment:
        """It is retired with the search at the latest."""
        self._owned[env.name] = env
        return env

    async def let_go(self, env: Environment) -> None:
        """It has no more part in it."""
        await retired(env)
        self._owned.pop(env.name, None)

    async def retire_all(self) -> None:
        """What is left."""
        for env in list(self._owned.values()):
            await self.let_go(env)

    def found(self) -> Found:
        """What came of it."""
        ended = tuple(sorted(self._ended, key=worth))
        return Found(best=ended[0] if ended else None, tried=self._tried, ended=ended, depth=self._depth)

    async def grown(self, alive: Sequence[Play], enough: float) -> list[tuple[float, Play]] | None:
        """All children, each with how promising it is; None where enough was found."""
        grown: list[tuple[float, Play]] = []
        for play in alive:
            proposed = await self._proposed(play)
            stops = [one for one in proposed if isinstance(one, Stop)][:1]
            actions = [one for one in proposed if not isinstance(one, Stop)][: self._fan_out]
            for stop in stops:
                self._ended.append(await play.judged(self._judge, stop.answer, "policy"))
                if self._ended[-1].reward >= enough:
                    return None
            grown += await self._children(play, actions)
        return grown

    async def _proposed(self, play: Play) -> list[dict[str, Any] | Stop]:
        rollout: dict[str, str | int] = {"task": self._task.id, "attempt": play.attempt}
        try:
            given = list(await asked(self._propose, self._task.goal, play.observed(), play.steps))
        except Exception as error:
            told = f"what proposes raised: {raised(error)}"
            raise PolicyFailed(told, task=self._task.id, attempt=play.attempt) from error
        return [plain(one, rollout) for one in given]

    async def _children(self, play: Play, actions: Sequence[dict[str, Any]]) -> list[tuple[float, Play]]:
        """A child for each action, which is done there. The parent goes, also where there are none."""
        if not actions:
            await self.let_go(play.env)
            return []
        envs = await self._forked(play, len(actions))
        await self.let_go(play.env)
        plays = [play.goes_on(env) for env in envs]
        grown: list[tuple[float, Play]] = []

        async def one(child: Play, action: dict[str, Any]) -> None:
            step = await child.act(action)
            self._tried += 1
            self._depth = max(self._depth, len(child.steps))
            if step.outcome == "invalid":
                await self.let_go(child.env)
                return
            grown.append((await self._scored(child), child))

        try:
            async with anyio.create_task_group() as tasks:
                for child, action in zip(plays, actions, strict=True):
                    tasks.start_soon(one, child, action)
        except BaseExceptionGroup as group:
            raise first_failure(group) from None
        order = {child.env.name: place for place, child in enumerate(plays)}
        return sorted(grown, key=lambda pair: order[pair[1].env.name])

    async def _scored(self, child: Play) -> float:
        try:
            return float(await asked(self._score, child.told()))
        except Exception as error:
            told = f"what scores raised: {raised(error)}"
            raise PolicyFailed(told, task=self._task.id, attempt=child.attempt) from error

    async def _forked(self, play: Play, n: int) -> list[Environment]:
        try:
            return [self.own(env) for env in await self._engine.fork(play.env.name, n=n)]
        except PartialFork as partial:
            for name in partial.born:
                self.own(self._engine.environment(name))
            raise

    async def pruned(self, grown: Sequence[tuple[float, Play]], keep: int) -> list[Play]:
        """The most promising; all others are retired."""
        best = sorted(grown, key=lambda pair: -pair[0])  # of equals the likelier, which was proposed earlier
        for _, play in best[keep:]:
            await self.let_go(play.env)
        return [play for _, play in best[:keep]]
