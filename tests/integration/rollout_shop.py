"""An agent and tasks for rollouts in the real shop; a module of its own, as users have it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from statefork.actions import Click, Goto
from statefork.adapters.interfaces.rollout import Observed, Step, Stop, Trajectory
from statefork.adapters.interfaces.rollout.policies import Decision
from statefork.worlds.shop.catalogue import articles

FIRST, SECOND = list(articles())[:2]
SHOP = "http://shop.example"
BUTTON = "#add_to_basket_form button[type=submit]"  # recommended articles have one too
LINES = "SELECT sum(l.quantity) FROM basket_line l JOIN catalogue_product p ON p.id = l.product_id WHERE p.title = ?"


def task(number: int, intent: str, start: str, **judged: Any) -> dict[str, Any]:
    """A task of WebArena's form."""
    return {
        "task_id": number,
        "sites": ["shopping"],
        "start_url": f"__SHOPPING__{start}",
        "intent": intent,
        "eval": judged,
    }


TASKS = [
    task(
        1,
        f"Put {FIRST.title} into my basket.",
        FIRST.path,
        eval_types=["sql_match", "page_match"],
        sql=[{"query": LINES, "parameters": [FIRST.title], "equals": 1}],
        page={"must_include": "has been added to your basket", "must_exclude": "not found"},
    ),
    task(
        2,
        f"Open the page of {SECOND.title}.",
        "/basket/ |AND| __SHOPPING__/catalogue/",
        eval_types=["url_match"],
        reference_url=f"__SHOPPING__{SECOND.path}",
    ),
    task(
        3,
        f"What does {FIRST.title} cost?",
        FIRST.path,
        eval_types=["string_match"],
        reference_answers={"must_include": [f"{FIRST.price:.2f}"]},
    ),
]
BUY = task(
    4,
    f"Buy {SECOND.title}: it is to be in my basket.",
    "/catalogue/",
    eval_types=["sql_match"],
    sql=[{"query": LINES, "parameters": [SECOND.title], "equals": 1}],
)


async def act(goal: str, observation: Observed, history: Sequence[Step]) -> Decision:
    """A scripted agent for all of them."""
    if goal.startswith("Put"):
        return Stop() if history else Click(selector=BUTTON)
    if goal.startswith("Open"):
        if history:
            return Stop()
        return Goto(f"{SHOP}{SECOND.path}")
    price = re.search(r"paragraph: £(\d+\.\d\d)", observation.text)
    return Stop(f"It costs {price[1]}." if price else "I do not know")


def propose(goal: str, observation: Observed, history: Sequence[Step]) -> list[Decision]:
    """What might lead there: most of it does not."""
    if "has been added to your basket" in observation.text:
        return [Stop()]
    return [
        Goto(f"{SHOP}/basket/"),
        Goto(f"{SHOP}{SECOND.path}"),
        Click(selector=BUTTON),
    ]


def score(trajectory: Trajectory) -> float:
    """Near is who is at the article, nearer who has put it into the basket from there."""
    seen = trajectory.steps[-1].seen
    return seen.url.endswith(SECOND.path) + 2.0 * ("has been added" in seen.text and SECOND.title in seen.text)
