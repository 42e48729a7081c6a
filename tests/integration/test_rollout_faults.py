"""``statefork rollout``: what is wrong with somebody's policy or judge, and how it is told."""

from __future__ import annotations

import json
import sys

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.sync import open_engine
from tests.integration.rollout_kit import lines, task
from tests.integration.test_rollout import Rolling, _agents_of_one_test, retired, rolling

__all__ = ["_agents_of_one_test", "rolling"]

FAULTY = """
import json
import sys
from agent import act


def fault(goal):
    kind = goal.split()[0]
    if kind == "exit":
        sys.exit(7)
    if kind == "stop":
        raise StopIteration
    if kind == "generator":
        raise GeneratorExit
    if kind == "break":
        raise ValueError("one line\\nand another")
    if kind == "own":
        raise BaseException("own")


def plain(goal, observation, history):
    fault(goal)
    return act(goal, observation, history)


async def asynchronous(goal, observation, history):
    fault(goal)
    return act(goal, observation, history)


async def judge(task, env, trajectory):
    fault(task.goal)
    return 1.0


def judge_plainly(task, env, trajectory):
    fault(task.goal)
    return 1.0


def wrong(goal, observation, history):
    return 7 if goal.startswith("count to") else "{nothing"


def written(goal, observation, history):
    return json.dumps(act(goal, observation, history))


class Unmakable:
    def __init__(self):
        sys.exit("no model")

    def __call__(self, goal, observation, history):
        raise AssertionError
"""
SAID = {
    "exit": "SystemExit: 7 (faulty.py:10)",
    "stop": "StopIteration (faulty.py:12)",
    "generator": "GeneratorExit (faulty.py:14)",
    "break": "ValueError: one line and another (faulty.py:16)",
    "own": "BaseException: own (faulty.py:18)",
}


@pytest.fixture
def faulty(rolling: Rolling, monkeypatch: pytest.MonkeyPatch) -> Rolling:
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    (rolling.folder / "faulty.py").write_text(FAULTY)
    return rolling


@pytest.mark.parametrize("who", ["plain", "asynchronous", "judge", "judge_plainly"])
def test_whatever_is_raised_fails_that_rollout_alone_and_its_place_is_told(faulty: Rolling, who: str) -> None:
    tasks = [task(kind, f"{kind} at 1") for kind in SAID] + [task("good", "count to 1")]
    (faulty.folder / "tasks.json").write_text(json.dumps(tasks))
    judged = who.startswith("judge")
    more = ("--judge", f"faulty:{who}") if judged else ()
    told = faulty(*more, policy="agent:act" if judged else f"faulty:{who}", status=1)
    assert [one["id"] for one in lines(faulty.out / "trajectories.jsonl")] == ["good/1"]
    assert {one["code"] for one in told["failed"]} == {"policy_failed"}
    for one in told["failed"]:
        assert one["message"].endswith(f": {SAID[one['task']]}"), one
    assert len(told["failed"]) == len(SAID)
    assert len(retired(faulty.out / "state")) == len(tasks), "of the failed, too"


def test_a_class_that_can_not_be_made_fails_its_rollouts(faulty: Rolling) -> None:
    told = faulty(policy="faulty:Unmakable", status=1)
    assert [one["message"] for one in told["failed"]] == [
        "Unmakable can't be made: SystemExit: no model (faulty.py:51)"
    ] * 2


def test_a_module_that_ends_the_program_is_told(faulty: Rolling) -> None:
    (faulty.folder / "faulty.py").write_text("import sys\nsys.exit(7)\n")
    error = faulty(policy="faulty:plain", status=2)["error"]
    assert (error["code"], error["message"]) == (
        "policy_failed",
        "faulty:plain: its module raised SystemExit: 7 (faulty.py:2)",
    )


def test_what_is_no_action_is_told_and_an_action_may_be_text(faulty: Rolling) -> None:
    told = faulty(policy="faulty:wrong", status=1)
    first, second = sorted((one["message"] for one in told["failed"]), key=len)
    assert first == "what the policy gave is no action and no stop: its type is int"
    assert second.startswith("the policy gave a text that is not JSON (")
    assert second.endswith("): '{nothing'")
    faulty.out.rename(faulty.folder / "before")
    assert faulty(policy="faulty:written")["reward"] == 1.0


def test_a_list_of_failures_has_a_line_each_and_no_reward_where_there_is_none(
    faulty: Rolling, capsys: pytest.CaptureFixture[str]
) -> None:
    (faulty.folder / "tasks.json").write_text(json.dumps([{**task(1, "x"), "start_url": "http://a.example/\nb"}]))
    assert invoke(faulty.words()) == 1
    lines_told = capsys.readouterr().out.splitlines()
    assert "mean reward" not in lines_told[0]
    assert lines_told[2].startswith("failed: 1/1: invalid_action: the task's start_url 'http://a.example/")
    assert len(lines_told) == 4


def test_a_directory_that_an_engine_uses_is_told_with_what_to_do(faulty: Rolling) -> None:
    with open_engine("numbers.toml", state=faulty.out / "state"):
        error = faulty(status=2)["error"]
    assert error["code"] == "state_locked"
    assert "statefork world down --state out/state" in error["hint"]
    assert "--out" in error["hint"]
