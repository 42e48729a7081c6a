"""Rollouts in the real shop: a scripted policy does its tasks, and a search over forks finds a way by trying."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statefork.adapters.interfaces import rollout, webarena
from statefork.adapters.interfaces.rollout.judges import chosen
from statefork.adapters.interfaces.rollout.policies import Decision
from statefork.adapters.interfaces.webarena.evaluating import PYTHON_VARIABLE
from statefork.worlds.office.scripted import scripts
from tests.integration import rollout_shop
from tests.integration.rollout_kit import lines
from tests.integration.shop_kit import needs_shop, open_shop
from tests.integration.venv_kit import venv_of
from tests.integration.webarena_kit import REQUIREMENTS

if TYPE_CHECKING:
    from statefork.adapters.interfaces.python import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.shop, pytest.mark.browser, pytest.mark.timeout(600), needs_shop]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # as the command runs policies


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    async with open_shop(tmp_path_factory.mktemp("rollouts") / "state") as opened:
        yield opened


async def test_a_policy_does_its_tasks_and_is_rewarded(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps(rollout_shop.TASKS))
    tasks = rollout.read_tasks(tmp_path / "tasks.json")
    told = await rollout.collect(
        engine, tasks, rollout_shop.act, rollout.PlainJudge(), tmp_path / "out", at_once=3, steps_max=4
    )
    assert (told.complete, told.done, told.reward) == (True, 3, 1.0), told
    basket, page, price = lines(tmp_path / "out" / "trajectories.jsonl")
    assert basket["actions"] == [{"type": "click", "selector": rollout_shop.BUTTON}]
    assert "has been added to your basket" in basket["messages"][-2]["content"]
    assert page["observations"][0]["url"] == f"{rollout_shop.SHOP}/basket/"
    assert [step["number"] for step in page["steps"]] == [4], "after two tabs were opened, and the first was shown"
    assert page["observations"][-1]["url"] == f"{rollout_shop.SHOP}{rollout_shop.SECOND.path}"
    assert price["answer"] == f"It costs {rollout_shop.FIRST.price:.2f}."
    for one in (basket, page, price):
        pictures = {look["screenshot"] for look in one["observations"]}
        assert all(engine.blobs.get(digest).startswith(b"\x89PNG") for digest in pictures)
    (again,) = await engine.fork(basket["end"])
    assert "1 item" in (await again.observe()).text or "basket" in (await again.observe()).text.lower()
    await again.retire()
    assert engine.environments() == []


async def test_a_search_finds_what_is_not_told(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps(rollout_shop.BUY))
    (task,) = rollout.read_tasks(tmp_path / "tasks.json")
    found = await rollout.tree_search(
        engine,
        task,
        rollout_shop.propose,
        rollout_shop.score,
        rollout.PlainJudge(),
        name="search",
        fan_out=3,
        depth_max=3,
        keep=1,
    )
    assert found.solved, found
    assert found.best is not None
    assert [step.action["type"] for step in found.best.steps] == ["goto", "click"]
    assert (found.tried, found.depth) == (6, 2)
    assert engine.environments() == []


async def test_webarenas_own_evaluators_judge(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of the office that lies in the shop, done rightly and wrongly."""
    monkeypatch.setenv(PYTHON_VARIABLE, str(venv_of(REQUIREMENTS)))
    name = "6"
    (tmp_path / "tasks.json").write_text(json.dumps([webarena.packaged()[name].config]))
    tasks = rollout.read_tasks(tmp_path / "tasks.json")
    script = scripts()[name]

    async def policy(goal: str, observation: rollout.Observed, history: Sequence[rollout.Step]) -> Decision:
        actions, answer = script["right" if observation.attempt == 1 else "wrong"]
        if len(history) == len(actions):
            return rollout.Stop(answer)
        action: dict[str, Any] = json.loads(
            json.dumps(actions[len(history)]).replace("__SHOPPING__", rollout_shop.SHOP)
        )
        return action

    async with chosen("webarena", tasks) as judge:
        told = await rollout.collect(engine, tasks, policy, judge, tmp_path / "out", attempts=2)
    assert told.complete, told.failed
    assert [one["reward"] for one in lines(tmp_path / "out" / "trajectories.jsonl")] == [1.0, 0.0]
    assert [one["id"] for one in lines(tmp_path / "out" / "best.jsonl")] == [f"{name}/1"]
