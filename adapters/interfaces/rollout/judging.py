"""What a rollout is worth. A judge is any asynchronous callable; the one here knows what can be told without a model.

Of WebArena's evaluators it knows ``string_match`` (without ``fuzzy_match``) and ``url_match``, and besides:

``page_match``
    ``"page": {"must_include": ["Thank you"]}``: texts that the page shows in the end (or ``must_exclude``).
``sql_match``
    ``"sql": [{"resource": "db", "query": "SELECT count(*) FROM basket_line", "equals": 1}]``: the first value of the
    first row. Without ``equals`` it must be there, and not be 0 or empty.
``python``
    ``"python": "module:function"``: an asynchronous callable of an Evaluation and the Trajectory, which scores.

All that one of them reads is of one generation. The reward is the product of all, as WebArena's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from statefork.adapters.interfaces.rollout.calling import asked
from statefork.adapters.interfaces.rollout.errors import PolicyFailed
from statefork.adapters.interfaces.rollout.policies import load_policy
from statefork.adapters.interfaces.rollout.tasks import Task
from statefork.adapters.interfaces.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment, Evaluation


class Judge(Protocol):
    """Scores an environment, as it is now, after a trajectory."""

    async def __call__(self, task: Task, env: Environment, trajectory: Trajectory, /) -> float:
        """From 0 to 1. What it raises fails the rollout, which is tried again."""
        ...


Check = Callable[["Evaluation", Task, Trajectory], Awaitable[float]]


class PlainJudge:
    """See the module."""

    async def __call__(self, task: Task, env: Environment, trajectory: Trajectory, /) -> float:
        """The product of all that the task asks for. Raises PolicyFailed for a kind of evaluator that is not known."""
        self.check(task)

        async def checked(evaluation: Evaluation) -> float:
            score = 1.0
            for kind in task.eval.get("eval_types", ()):
                score *= await KINDS[kind](evaluation, task, trajectory)
            return score

        return await env.evaluate(checked, name=f"task {task.id}")

    def check(self, task: Task) -> None:
        """Raise PolicyFailed where the task can't be judged here."""
        kinds = task.eval.get("eval_types") or []
        unknown = [str(kind) for kind in kinds if kind not in KINDS]
        if "fuzzy_match" in _answers(task):
            unknown.append("fuzzy_match")
        if unknown or not kinds:
            what = f"evaluators that are not known here: {', '.join(unknown)}" if unknown else "no eval_types"
            hint = f"Known are {', '.join(KINDS)}; WebArena's own evaluators know more (--judge webarena)"
            raise PolicyFailed(f"task {task.id} has {what}", hint=hint, task=task.id)


def _answers(task: Task) -> Mapping[str, Any]:
    found = task.eval.get("reference_answers")
    return found if isinstance(found, dict) else {}


async def _string_match(_: Evaluation, task: Task, trajectory: Trajectory) -> float:
    answer = _clean(trajectory.answer)
    score = 1.0
    for how, wanted in _answers(task).items():
        if how == "exact_match":
            score *= float(answer == _clean(wanted))
        elif how == "must_include":
            score *= float(all(_clean(one) in answer for one in _several(wanted)))
    return score


def _clean(text: object) -> str:
    """Without case, and without the quotes around it, as WebArena compares."""
    plain = str(text).strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        plain = plain[1:-1]
    return plain.lower()


def _several(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


async def _url_match(evaluation: Evaluation, task: Task, _: Trajectory) -> float:
    """One of the addresses ("|OR|" between them) is the page's: host and path, and every query that it names."""
    seen = urlsplit((await evaluation.look()).url)
    wanted = str(task.eval.get("reference_url", "")).split(" |OR| ")
    return float(any(_leads_to(urlsplit(one), seen) for one in wanted))


def _leads_to(wanted: Any, seen: Any) -> bool:
    same_place = wanted.netloc == seen.netloc and unquote(wanted.path).rstrip("/") == unquote(seen.path).rstrip("/")
    return bool(same_place and set(filter(None, wanted.query.split("&"))) <= set(seen.query.split("&")))


async def _page_match(evaluation: Evaluation, task: Task, _: Trajectory) -> float:
    text = (await evaluation.look()).text.lower()
    wanted = task.eval.get("page") or {}
    included = all(str(one).lower() in text for one in _several(wanted.get("must_include", [])))
    excluded = not any(str(one).lower() in text for one in _several(wanted.get("must_exclude", [])))
    return float(included and excluded)


async def _sql_match(evaluation: Evaluation, task: Task, _: Trajectory) -> float:
    for one in _several(task.eval.get("sql", [])):
        assert isinstance(one, dict), "a query is an object"
        rows = evaluation.query(str(one.get("resource", "db")), str(one["query"]), tuple(one.get("parameters", ())))
        value = next(iter(rows[0].values()), None) if rows else None
        if (value != one["equals"]) if "equals" in one else not value:
            return 0.0
    return 1.0


async def _python(evaluation: Evaluation, task: Task, trajectory: Trajectory) -> float:
    return float(await asked(load_policy(str(task.eval.get("python", ""))), evaluation, trajectory))


KINDS: dict[str, Check] = {
    "string_match": _string_match,
    "url_match": _url_match,
    "page_match": _page_match,
    "sql_match": _sql_match,
    "python": _python,
}
