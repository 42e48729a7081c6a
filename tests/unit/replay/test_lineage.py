"""Given a history, then the trajectory: the actions that led to the present content, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from statefork.engine.errors import UnknownRef
from statefork.journal.values import Moment
from statefork.replay.lineage import Act, Given, Trajectory, pasts, trajectory


def then(story: Any, env: str, **at: int) -> list[str]:
    """The trajectory in short: numbers and names of actions, ``input`` for inputs."""
    found = trajectory(pasts(story.recorded()), env, **at)
    assert len(found.steps) == len(found.witnessed)
    return [_short(step) for step in found.steps]


def _short(step: Act | Given) -> str:
    return f"input after {step.after}" if isinstance(step, Given) else f"{step.number} {step.action['selector']}"


def click(name: str) -> dict[str, Any]:
    """An action that bears a name."""
    return {"type": "click", "selector": name}


@pytest.fixture
def shop(new_story: type[Any]) -> Any:
    """A created environment with two actions and an input between them."""
    story = new_story()
    story.create("shop")
    story.act("shop", click("search"))
    story.given("shop")
    story.act("shop", click("buy"))
    return story


def test_a_created_environment_has_what_was_done_in_it(shop: Any) -> None:
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy"]


def test_its_origin_has_nothing_behind_it(shop: Any) -> None:
    assert then(shop, "shop", generation=1) == []


def test_a_snapshot_continues(shop: Any) -> None:
    shop.snapshot("shop")
    shop.act("shop", click("pay"))
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy", "3 pay"]
    assert then(shop, "shop", generation=2) == ["1 search", "input after 1", "2 buy"]


def test_a_restore_leaves_the_abandoned_future_out(shop: Any) -> None:
    shop.snapshot("shop")
    shop.act("shop", click("pay"))
    shop.switch("shop", "restore", ("shop", 2))
    shop.act("shop", click("cancel"))
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy", "3 cancel"]


def test_a_reset_begins_anew(shop: Any) -> None:
    shop.switch("shop", "reset", ("shop", 1))
    shop.act("shop", click("leave"))
    assert then(shop, "shop") == ["1 leave"]


def test_restoring_a_generation_behind_a_reset_brings_its_actions_back(shop: Any) -> None:
    shop.snapshot("shop")
    shop.switch("shop", "reset", ("shop", 1))
    shop.act("shop", click("leave"))
    shop.switch("shop", "restore", ("shop", 2))
    shop.act("shop", click("pay"))
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy", "3 pay"]


def test_a_fork_continues_its_parents_lineage_up_to_the_fork(shop: Any) -> None:
    shop.snapshot("shop")
    shop.act("shop", click("pay"))
    shop.fork("shop", "child", generation=2)
    shop.act("child", click("cancel"))
    assert then(shop, "child") == ["1 search", "input after 1", "2 buy", "3 cancel"]
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy", "3 pay"]


def test_a_fork_of_a_fork_of_a_restored_parent(shop: Any) -> None:
    shop.snapshot("shop")
    shop.fork("shop", "child", generation=2)
    shop.act("child", click("pay"))
    shop.snapshot("child")
    shop.switch("shop", "reset", ("shop", 1))
    shop.fork("child", "grandchild", generation=2)
    shop.act("grandchild", click("return"))
    assert then(shop, "grandchild") == ["1 search", "input after 1", "2 buy", "3 pay", "4 return"]
    found = trajectory(pasts(shop.recorded()), "grandchild")
    assert found.origin == Moment(env="shop", generation=1)


def test_a_clone_has_an_origin_of_its_own(shop: Any) -> None:
    shop.snapshot("shop")
    shop.fork("shop", "copy", generation=2, how="clone")
    shop.act("copy", click("pay"))
    assert then(shop, "copy") == ["1 pay"]
    assert trajectory(pasts(shop.recorded()), "copy").origin == Moment(env="copy", generation=1)


@pytest.mark.parametrize("source", [("shop", 2), None])
def test_recovery_drops_what_the_crash_cost(shop: Any, source: tuple[str, int] | None) -> None:
    shop.snapshot("shop")
    shop.begun("shop", click("pay"))
    shop.tell("engine", "engine.started/1", run="r2", pid=2, statefork="0.1.0")
    shop.begin("shop", "recover", source)
    shop.publish("shop", "recover", source, lost_actions=[3])
    shop.heads["shop"]["actions"] = 2
    shop.activate("shop")
    shop.act("shop", click("leave"))
    assert then(shop, "shop") == ["1 search", "input after 1", "2 buy", "3 leave"]


def test_it_can_be_cut_after_an_action(shop: Any) -> None:
    assert then(shop, "shop", actions=1) == ["1 search"]
    assert then(shop, "shop", actions=2) == ["1 search", "input after 1", "2 buy"]
    assert then(shop, "shop", actions=0) == []


def test_what_was_seen_stands_beside_each_step_and_not_in_it(shop: Any) -> None:
    shop.begun("shop", click("pay"))
    shop.ended("shop", outcome="failed")
    shop.begun("shop", click("leave"))
    found: Trajectory = trajectory(pasts(shop.recorded()), "shop")
    assert [witnessed.outcome for witnessed in found.witnessed] == ["ok", "ok", "ok", "failed", "unknown"]
    assert found.witnessed[0].observation is not None
    assert found.witnessed[0].observation.digest == "seen-1"
    assert found.witnessed[1].status == 200
    assert not {"observation", "outcome", "position"} & set(Act.__struct_fields__ + Given.__struct_fields__)


@pytest.mark.parametrize(
    ("env", "at", "told"),
    [
        ("nobody", {}, "no environment nobody"),
        ("shop", {"generation": 9}, "no generation 9"),
        ("shop", {"actions": 9}, "shop has 2 actions. The last moment is shop#2"),
    ],
)
def test_a_moment_that_never_was_is_an_error_that_says_so(shop: Any, env: str, at: dict[str, int], told: str) -> None:
    with pytest.raises(UnknownRef, match=told):
        then(shop, env, **at)
