"""Searching over forks: children are tried, pruned and retired; the best way is found, what fails leaves nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from statefork.adapters.interfaces import rollout
from statefork.adapters.interfaces.python import open_engine
from statefork.adapters.interfaces.rollout.keeping import opened
from statefork.adapters.interfaces.rollout.policies import Decision, Observed, Stop
from statefork.adapters.interfaces.rollout.tasks import Task
from statefork.adapters.interfaces.rollout.trajectory import Step, Trajectory
from tests.integration.rollout_kit import CONTRACT

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment
    from statefork.adapters.interfaces.python import Engine

pytestmark = pytest.mark.anyio

GOAL = Task(id="7", goal="count to 7")
ADD: dict[str, Any] = {"type": "add", "key": "count"}


@asynccontextmanager
async def numbers(folder: Path) -> AsyncIterator[Engine]:
    """An engine of the small world; in the end no environment is left."""
    (folder / "numbers.toml").write_text(CONTRACT)
    async with open_engine(folder / "numbers.toml", state=folder / "state") as engine:
        yield engine
        assert engine.environments() == []


def counted(observation: Observed) -> int:
    value = observation.value
    found = value["count"] if isinstance(value, dict) else value
    assert isinstance(found, int)
    return found


def propose(goal: str, observation: Observed, history: Sequence[Step]) -> list[Decision]:
    """One too far, one too short, one that there is not; and the end where it is there."""
    if counted(observation) == 7:
        return [Stop("7")]
    return [{"type": "fly"}, {**ADD, "amount": 1}, {**ADD, "amount": 3}, {**ADD, "amount": 100}]


def near(trajectory: Trajectory) -> float:
    value = trajectory.steps[-1].seen.value
    assert isinstance(value, int)
    return -abs(7.0 - value)


async def judge(task: Task, env: Environment, trajectory: Trajectory) -> float:
    return float(trajectory.answer == "7")


async def test_the_best_children_go_on_until_it_is_solved(tmp_path: Path) -> None:
    alive: list[int] = []
    async with numbers(tmp_path) as engine:

        def score(trajectory: Trajectory) -> float:
            alive.append(len(engine.environments()))
            return near(trajectory)

        found = await rollout.tree_search(engine, GOAL, propose, score, judge, name="s", fan_out=4, keep=2)
        assert found.solved
        assert found.best is not None
        assert sorted(step.action["amount"] for step in found.best.steps) == [1, 3, 3]
        assert (found.depth, found.best.answer, len(found.ended)) == (3, "7", 1)
        assert max(alive) <= 2 * (4 + 1)
        assert found.tried == 4 + 2 * 8
        (again,) = await engine.fork(found.best.end)  # it is retired, and what it did can be gone on with
        assert (await again.observe()).value == {"count": 7}
        (halfway,) = await engine.fork(found.best.steps[1].ref)
        assert (await halfway.observe()).value == {"count": found.best.steps[1].seen.value}
        await again.retire()
        await halfway.retire()


async def test_it_ends_where_nothing_is_found(tmp_path: Path) -> None:
    async with numbers(tmp_path) as engine:
        short = await rollout.tree_search(engine, GOAL, propose, near, judge, name="s", depth_max=2)
        assert (short.best, short.solved, short.depth) == (None, False, 2)
        none = await rollout.tree_search(engine, GOAL, lambda *_: [], near, judge, name="s")
        assert (none.best, none.tried) == (None, 0)
        poor = await rollout.tree_search(engine, GOAL, lambda *_: [Stop("5")], near, judge, name="s")
        assert poor.best is not None
        assert (poor.best.reward, poor.solved) == (0.0, False)


@pytest.mark.parametrize("part", ["propose", "score", "judge"])
async def test_what_raises_leaves_nothing(tmp_path: Path, part: str) -> None:
    def fails(*_: object) -> Any:
        raise ValueError("no idea")

    async def judge_fails(*_: object) -> float:
        raise ValueError("no idea")

    given: dict[str, Any] = {"propose": propose, "score": near, "judge": judge}
    given[part] = judge_fails if part == "judge" else fails
    async with numbers(tmp_path) as engine:
        with pytest.raises((rollout.PolicyFailed, ValueError), match="no idea"):
            await rollout.tree_search(engine, GOAL, given["propose"], given["score"], given["judge"], name="s")


async def test_who_gives_up_leaves_nothing(tmp_path: Path) -> None:
    async with numbers(tmp_path) as engine:
        with anyio.CancelScope() as scope:

            async def score(trajectory: Trajectory) -> float:
                scope.cancel()
                return 0.0

            await rollout.tree_search(engine, GOAL, propose, score, judge, name="s")
        assert scope.cancelled_caught


async def test_the_best_of_several(tmp_path: Path) -> None:
    async def policy(goal: str, observation: Observed, history: Sequence[Step]) -> Decision:
        if counted(observation) >= 7:
            return Stop(str(counted(observation)))
        return {**ADD, "amount": observation.attempt}

    async with numbers(tmp_path) as engine:
        found = await rollout.best_of(engine, GOAL, policy, judge, 3, name="b")
    # by one it is seven steps; by two and by three it is missed
    assert [(one.attempt, one.reward, len(one.steps)) for one in found] == [(1, 1.0, 7), (3, 0.0, 3), (2, 0.0, 4)]


async def test_each_begins_at_a_moment_that_was_prepared(tmp_path: Path) -> None:
    def policy(goal: str, observation: Observed, history: Sequence[Step]) -> Decision:
        return Stop(str(counted(observation))) if counted(observation) == 7 else {**ADD, "amount": 1}

    async with numbers(tmp_path) as engine:
        env = await engine.create("ready")
        await env.act({**ADD, "amount": 5})
        at = str(await env.snapshot())
        await env.act({**ADD, "amount": 100})  # what comes after it is not theirs
        assert (await rollout.collect(engine, [GOAL], policy, judge, tmp_path / "out", attempts=2, at=at)).complete
        (best, _) = await rollout.best_of(engine, GOAL, policy, judge, 2, name="b", at=at)
        found = await rollout.tree_search(engine, GOAL, propose, near, judge, name="s", at=at)
        await env.retire()
    kept = [json.loads(line) for line in (tmp_path / "out/trajectories.jsonl").read_text().splitlines()]
    assert [(one["reward"], len(one["actions"])) for one in kept] == [(1.0, 2)] * 2
    assert (best.reward, len(best.steps)) == (1.0, 2)
    assert found.best is not None
    assert found.best.reward == 1.0


def test_one_run_writes_to_a_directory(tmp_path: Path) -> None:
    same = {"policy": "p", "world": "w", "tasks": "t"}
    with (
        opened(tmp_path / "out", **same),
        pytest.raises(rollout.RolloutsDiffer, match="another run writes"),
        opened(tmp_path / "out", **same),
    ):
        raise AssertionError("two have it open")
