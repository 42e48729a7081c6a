"""A task of WebArena's form, done rightly and wrongly, judged by libwebarena's own evaluators: webarena_task.py 8."""

import sys

import anyio

import statefork
from statefork.adapters.interfaces import webarena
from statefork.worlds.office.scripted import scripts


async def main(number: str) -> None:
    task = webarena.packaged()[number]
    print(task.intent)
    async with statefork.open_engine("office", state="./example-state") as engine, webarena.Evaluators() as evaluators:
        for way, agent in scripts()[number].items():
            env = await engine.create(f"task-{number}-{way}")
            answer = await agent.perform(env, webarena.sites_of(env).for_agent)  # your policy acts here
            print(way, await evaluators.evaluate(env, task, answer))
            await env.retire()


anyio.run(main, sys.argv[1], backend="trio")
