"""Judging environments by unmodified evaluators of WebArena's and VisualWebArena's.

::

    async with Evaluators(python="webarena-venv/bin/python") as evaluators:
        score = await evaluators.evaluate(env, task, "the answer")

The evaluator runs in a process of its own while the environment's generation is held by an evaluation's lease: another
environment may be reset, and others may write. See docs/design/interfaces-webarena.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from statefork.adapters.interfaces.webarena.errors import EvaluatorNeedsModel, SiteMissing
from statefork.adapters.interfaces.webarena.page import shown
from statefork.adapters.interfaces.webarena.process import Workers, check_interpreter
from statefork.adapters.interfaces.webarena.sites import Sites, read_sites
from statefork.adapters.interfaces.webarena.tasks import Task
from statefork.adapters.resources.browser.chromium import find_chromium
from statefork.engine.ports import Resource
from statefork.journal.values import Json

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment, Evaluation

PYTHON_VARIABLE = "STATEFORK_WEBARENA_PYTHON"
DEADLINE_S = 120.0
"""Of one evaluation. Upstream's waits three seconds for each page that it opens."""

WITHOUT_PAGE = {"string_match", "url_match"}
"""Evaluators that read the answer or the address, and nothing of the page."""

Trajectory = str | Sequence[Any]
"""What the agent did. Evaluators read its answer alone: the text itself, or the ``answer`` of the last entry."""


def sites_of(env: Environment, declared: Mapping[str, str] | None = None) -> Sites:
    """The sites of an environment, as ``declared`` (None: as the packaged worlds say) by their names in WebArena.

    Raises NotReady for a parked one.
    """
    doors = {
        str(binding.address["host"]): str(binding.address["base_url"])
        for binding in env.bindings.values()
        if binding.address.get("base_url") and binding.address.get("host")
    }
    return Sites(doors, read_sites() if declared is None else declared)


def answer_of(trajectory: Trajectory) -> str:
    """The agent's answer; empty where it gave none."""
    if isinstance(trajectory, str):
        return trajectory
    last = trajectory[-1] if trajectory else {}
    found = last.get("answer", "") if isinstance(last, Mapping) else getattr(last, "answer", "")
    return str(found or "")


class Evaluators:
    """Evaluators for any number of environments and tasks, several at once.

    ``python``: the interpreter that has libwebarena (and libvisualwebarena, for tasks of its form); else what the
    variable STATEFORK_WEBARENA_PYTHON names, else this one. ``model``: variables for evaluators that ask a language
    model, such as OPENAI_API_KEY and OPENAI_BASE_URL. ``captioner``: ``module:function`` that answers questions about
    pictures, importable there. ``sites``: see :func:`sites_of`. ``deadline_s``: of each evaluation.
    """

    def __init__(
        self,
        *,
        python: str | os.PathLike[str] | None = None,
        model: Mapping[str, str] | None = None,
        captioner: str = "",
        sites: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
        at_once: int | None = None,
    ) -> None:
        self._python = os.fspath(python or os.environ.get(PYTHON_VARIABLE) or sys.executable)
        self._model = dict(model or {})
        self._captioner = captioner
        self._declared = read_sites() if sites is None else dict(sites)
        self._deadline_s = deadline_s
        self._places = anyio.Semaphore(at_once or os.cpu_count() or 1)
        self._workers: dict[str, Workers] = {}

    @property
    def workers(self) -> tuple[Workers, ...]:
        """What is loaded now: one for each package that was needed."""
        return tuple(self._workers.values())

    async def __aenter__(self) -> Evaluators:
        """Raises MissingDependency where the interpreter is not there, or has no evaluators."""
        await check_interpreter(self._python)
        return self

    async def __aexit__(self, *_: object) -> None:
        for workers in self._workers.values():
            await workers.aclose()
        self._workers.clear()

    async def evaluate(
        self, env: Environment, task: Task, trajectory: Trajectory = "", *, deadline_s: float | None = None
    ) -> float:
        """The score of a task in an environment as it is now; it is journaled with the generation that was judged.

        ``deadline_s``: of this one.

        Raises EvaluatorNeedsModel and SiteMissing before anything runs; EvaluatorFailed and EvaluatorTimeout, after
        which the environment goes on as it was; MissingDependency where the package can't be imported.
        """
        self._check_model(task)
        await env.activate()
        needed = sites_of(env, self._declared)
        self._check_sites(task, needed)

        async def check(_: Evaluation) -> tuple[float, Json]:
            return await self._judged(env, task, answer_of(trajectory), deadline_s or self._deadline_s)

        async with self._places:
            return await env.evaluate(check, name=f"{task.package} {task.id}")

    def judge(self, task: Task) -> Callable[[Environment, Trajectory], Awaitable[float]]:
        """The task as a judge of rollouts."""

        async def judged(env: Environment, trajectory: Trajectory) -> float:
            return await self.evaluate(env, task, trajectory)

        return judged

    async def _judged(self, env: Environment, task: Task, answer: str, deadline_s: float) -> tuple[float, Json]:
        sites = sites_of(env, self._declared)
        page = await shown(env, sites)
        before = await _marks(env)
        request = {
            "task": f"task {task.id}",
            "answer": answer,
            "steps": [{"observation": {}, "info": {}}],
            "variables": sites.variables() | self._model,
            "hosts": sites.doors,
            "chromium": str(find_chromium()),
            "captioner": self._captioner,
            "page": {"url": page.url, "html": page.html},
            "looks": not set(task.eval_types) <= WITHOUT_PAGE,
            "viewport": page.viewport,
            "cookies": page.cookies,
        }
        config = sites.filled(_beside(task))
        score = await self._of(task.package).judge(request, config, deadline_s)
        after = await _marks(env)
        written: list[Json] = [name for name, mark in after.items() if before.get(name) != mark]
        return score, {"task": task.id, "answer": answer, "page": page.url, "written": written}

    def _of(self, package: str) -> Workers:
        if package not in self._workers:
            self._workers[package] = Workers(self._python, package, {"OPENAI_API_KEY": "none"} | self._model)
        return self._workers[package]

    def _check_model(self, task: Task) -> None:
        given = {"eval_vqa": bool(self._captioner)}
        lacking = [name for name in task.needs_model if not given.get(name, bool(self._model))]
        if lacking:
            raise EvaluatorNeedsModel(
                f"task {task.id} is judged by a model ({', '.join(lacking)}), and none was given",
                hint="Give Evaluators a model= (or, for eval_vqa, a captioner=), or leave the task out",
                task=task.id,
                needs=", ".join(lacking),
            )

    def _check_sites(self, task: Task, sites: Sites) -> None:
        try:
            sites.filled(json.dumps(task.config))
        except SiteMissing as error:
            raise SiteMissing(
                f"task {task.id}: {error.message}", hint=error.hint, task=task.id, **error.facts
            ) from None


async def evaluate(env: Environment, task: Task, trajectory: Trajectory = "", **options: Any) -> float:
    """Judge once: :meth:`Evaluators.evaluate` with evaluators of its own, which takes seconds longer."""
    async with Evaluators(**options) as evaluators:
        return await evaluators.evaluate(env, task, trajectory)


def _beside(task: Task) -> str:
    """The task as JSON; pictures that lie beside its file are named by their whole path."""
    config = json.loads(json.dumps(task.config))
    for query in config["eval"].get("page_image_query") or []:
        if isinstance(query.get("eval_fuzzy_image_match"), str):
            names = query["eval_fuzzy_image_match"].split(" |OR| ")
            query["eval_fuzzy_image_match"] = " |OR| ".join(task.beside(name) for name in names)
    return json.dumps(config)


async def _marks(env: Environment) -> dict[str, str]:
    """The stores' own write counters: what differs afterwards was written to."""
    marks = {}
    for name, branch in env.kernel.branches(env.name).items():
        resource: Resource = env.kernel.resources[name]
        if resource.adapter not in ("browser", "web", "process"):
            marks[name] = await resource.write_mark(branch)
    return marks
