"""Tree search over forks: which way leads into the basket? Run it with: python rollout.py STATE"""

import sys

import anyio

import statefork
from statefork.actions import Click, Goto
from statefork.adapters.interfaces import rollout

FILLED = {"eval_types": ["sql_match"], "sql": [{"query": "SELECT count(*) FROM basket_line", "equals": 1}]}
TASK = rollout.Task(id="buy", goal="Put an article into my basket", start_url="http://shop.example/", eval=FILLED)


def propose(goal, observation, history):  # a model would be asked here
    if "has been added to your basket" in observation.text:
        return [rollout.Stop()]
    return [Goto("http://shop.example/basket/"), Click(role="button", name="Add to basket", nth=0)]


async def main(state):
    async with statefork.open_engine("shop", state=state) as engine:
        near = {"propose": propose, "score": lambda done: "has been added" in done.steps[-1].seen.text}
        found = await rollout.tree_search(engine, TASK, judge=rollout.PlainJudge(), name="buy", keep=1, **near)
        print(*(f"{step.ref} {step.action['type']} -> {step.seen.title}" for step in found.best.steps), sep="\n")
        print(f"{found.tried} actions were tried; reward {found.best.reward}; it can be forked: {found.best.end}")


anyio.run(main, sys.argv[1])
