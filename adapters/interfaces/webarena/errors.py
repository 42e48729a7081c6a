"""What goes wrong with tasks and evaluators of WebArena's form."""

from __future__ import annotations

from collections.abc import Sequence

from statefork.engine.places import Problem
from statefork.journal.errors import StateforkError


class TasksInvalid(StateforkError):
    """A file of tasks can't be used; every problem is told with its place. ``facts``: file, line, column."""

    code = "tasks_invalid"

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        first = problems[0].place
        lines = [str(problem) for problem in problems]
        message = lines[0] if len(lines) == 1 else "\n  ".join([f"{first.file}: {len(lines)} problems", *lines])
        super().__init__(message, hint=hint, file=first.file, line=first.line, column=first.column)
        self.problems = tuple(problems)


class SiteMissing(StateforkError):
    """Nothing in this world stands for a site that a task needs. ``facts``: variable, and task if it is one's."""

    code = "site_missing"


class EvaluatorNeedsModel(StateforkError):
    """An evaluator asks a language or vision model, and none was given. ``facts``: task, needs (which evaluators)."""

    code = "evaluator_needs_model"


class EvaluatorFailed(StateforkError):
    """An evaluator raised, or its process died; the environment goes on. ``traceback``, ``said``: its own words."""

    code = "evaluator_failed"

    def __init__(
        self, message: str, *, traceback: str = "", said: str = "", hint: str = "", **facts: str | int | float | None
    ) -> None:
        super().__init__(message, hint=hint, **facts)
        self.traceback = traceback
        self.said = said


class EvaluatorTimeout(EvaluatorFailed):
    """An evaluator did not answer before its deadline and was killed, its browser too; the environment goes on."""

    code = "evaluator_timeout"
