"""Rollouts in the real shop: a scripted policy does its tasks, and a search over forks finds a way by trying."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statefork.adapters.interfaces import rollout
from tests.integration import rollout_shop
from tests.integration.rollout_kit import lines
from tests.integration.shop_kit import needs_shop, open_shop

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
