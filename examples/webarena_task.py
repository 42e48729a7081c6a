"""A task of WebArena's form, done rightly and wrongly, judged by libwebarena's own evaluators: webarena_task.py 8."""

import secrets
import sys

import anyio

import statefork
from statefork.adapters.interfaces import webarena
from statefork.worlds.office.scripted import scripts


async def main(number: str) -> None:
    task = webarena.packaged()[number]
    print(task.intent)
    async with webarena.Evaluators() as evaluators, statefork.open_engine("office", state="./example-state") as engine:
        for way, agent in scripts()[number].items():
            env = await engine.create(f"task-{number}-{way}-{secrets.token_hex(4)}")  # a name is used once
            answer = await agent.perform(env, webarena.sites_of(env).for_agent)  # your policy acts here
            print(way, await evaluators.evaluate(env, task, answer))
            await env.retire()


if len(sys.argv) != 2 or sys.argv[1] not in webarena.packaged():
    sys.exit(f"which task? {' '.join(webarena.packaged())}")
anyio.run(main, sys.argv[1], backend="trio")
