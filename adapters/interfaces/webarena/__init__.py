"""WebArena: environments as the sites of its tools, and its tasks judged by its own evaluators.

::

    from statefork.adapters.interfaces import webarena

    task = webarena.load_tasks("tasks.json")["7"]
    score = await webarena.evaluate(env, task, "the answer", python="webarena-venv/bin/python")
"""

from __future__ import annotations

from statefork.adapters.interfaces.webarena.errors import (
    EvaluatorFailed,
    EvaluatorNeedsModel,
    EvaluatorTimeout,
    SiteMissing,
    TasksInvalid,
)
from statefork.adapters.interfaces.webarena.evaluating import Evaluators, evaluate, sites_of
from statefork.adapters.interfaces.webarena.resetting import reset_server
from statefork.adapters.interfaces.webarena.sites import Sites, read_sites
from statefork.adapters.interfaces.webarena.tasks import Task, load_tasks, packaged

__all__ = [
    "EvaluatorFailed",
    "EvaluatorNeedsModel",
    "EvaluatorTimeout",
    "Evaluators",
    "SiteMissing",
    "Sites",
    "Task",
    "TasksInvalid",
    "evaluate",
    "load_tasks",
    "packaged",
    "read_sites",
    "reset_server",
    "sites_of",
]
