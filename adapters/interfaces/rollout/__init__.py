"""Trajectories for training: a policy acts in many environments, and what it did, saw and was rewarded for is kept.

::

    from statefork.adapters.interfaces import rollout

    tasks = rollout.read_tasks("tasks.json")
    async with statefork.open_engine("shop", state="./state") as engine:
        told = await rollout.collect(engine, tasks, policy, rollout.PlainJudge(), "rollouts", at_once=8)
        found = await rollout.tree_search(engine, tasks[0], propose, score, rollout.PlainJudge(), fan_out=3)
"""

from __future__ import annotations

from statefork.adapters.interfaces.rollout.collecting import Collected, collect
from statefork.adapters.interfaces.rollout.errors import PolicyFailed, RolloutsDiffer, TasksUnreadable
from statefork.adapters.interfaces.rollout.judging import Judge, PlainJudge
from statefork.adapters.interfaces.rollout.policies import Observed, Policy, Stop, load_policy
from statefork.adapters.interfaces.rollout.running import best_of, run
from statefork.adapters.interfaces.rollout.searching import Found, Propose, Score, tree_search
from statefork.adapters.interfaces.rollout.tasks import Task, read_tasks
from statefork.adapters.interfaces.rollout.trajectory import Step, Trajectory

__all__ = [
    "Collected",
    "Found",
    "Judge",
    "Observed",
    "PlainJudge",
    "Policy",
    "PolicyFailed",
    "Propose",
    "RolloutsDiffer",
    "Score",
    "Step",
    "Stop",
    "Task",
    "TasksUnreadable",
    "Trajectory",
    "best_of",
    "collect",
    "load_policy",
    "read_tasks",
    "run",
    "tree_search",
]
