"""Rollouts for tests: a small world of numbers, tasks in it, and an agent in a module of its own, as users have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTRACT = """
[contract]
name = "numbers"

[resources.page]
adapter = "memory"
initial = { count = 0 }
"""
AGENT = '''
"""Counts up to what the goal asks for. The first that gets to "halt" waits there until a file is there."""

import time
from pathlib import Path

HERE = Path(__file__).parent


def act(goal, observation, history):
    wanted = int(goal.rpartition(" ")[2])
    if "halt" in goal and history and not (HERE / "go").exists():
        (HERE / "halted").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
    if "raise" in goal and not (HERE / "go").exists():
        raise ValueError("no idea")
    count = observation.value if isinstance(observation.value, int) else observation.value["count"]
    if count >= wanted:
        return {"type": "stop", "answer": f"It is {count}"}
    if "wrongly" in goal and observation.attempt == 1:
        return {"type": "stop", "answer": "I give up"}
    if "badly" in goal and not history:
        return {"type": "fly"}
    if "badly" in goal and len(history) == 1:
        return {"type": "fail", "key": "count"}
    return {"type": "add", "key": "count", "amount": 1}


async def act_async(goal, observation, history):
    return act(goal, observation, history)


class Agent:
    """One for each rollout."""

    def __init__(self):
        self.asked = 0

    def __call__(self, goal, observation, history):
        assert self.asked == len(history), "an agent is made anew for each rollout"
        self.asked += 1
        return act(goal, observation, history)


async def counted(evaluation, trajectory):
    seen = await evaluation.look()
    return float(seen.value["count"] == int(trajectory.goal.rpartition(" ")[2]))
'''


def task(number: int | str, goal: str, **judged: Any) -> dict[str, Any]:
    """A task that is judged by what is counted."""
    return {
        "task_id": number,
        "sites": [],
        "start_url": "",
        "intent": goal,
        "eval": judged or {"eval_types": ["python"], "python": "agent:counted"},
    }


def written(folder: Path, *tasks: dict[str, Any]) -> Path:
    """A folder with the world, the agent and these tasks."""
    (folder / "numbers.toml").write_text(CONTRACT)
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.json").write_text(json.dumps(list(tasks)))
    return folder


def lines(file: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds; whole, or this fails."""
    data = file.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]
