"""The office's tasks for tests: acted by its scripts, and judged by the real evaluators in a virtual environment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from statefork.adapters.interfaces import webarena
from statefork.adapters.interfaces.python import Engine
from statefork.worlds.office.scripted import Script, scripts
from tests.integration.postgres_kit import needs_postgres
from tests.integration.shop_kit import needs_shop
from tests.integration.stack_kit import Tracker, Wiki, missing
from tests.integration.venv_kit import venv_of

REQUIREMENTS = Path(__file__).parent / "venvs/webarena.txt"
LACKING = missing(Tracker()) or missing(Wiki())
LANES = 4

needs_sites = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.shop,
    pytest.mark.sites,
    pytest.mark.timeout(600),
    needs_shop,
    needs_postgres,
    pytest.mark.skipif(bool(LACKING), reason=LACKING or "all is here"),
]


def evaluators(**options: object) -> webarena.Evaluators:
    """Those of the virtual environment."""
    return webarena.Evaluators(python=venv_of(REQUIREMENTS), **options)  # type: ignore[arg-type]  # passed on


def writes(script: Script) -> bool:
    """Whether a script may leave something behind."""
    return any(action["type"] != "goto" for action in script.actions)


async def scores(engine: Engine, names: list[str], *, seed: int) -> dict[str, dict[str, float]]:
    """What the right and the wrong script of each task score, in an order by chance and several at once.

    An environment takes the next task when it has done one; it is reset where something was left behind.
    """
    tasks, told = webarena.packaged(), scripts()
    todo = [(name, way) for name in names for way in told[name]]
    Random(seed).shuffle(todo)
    found: dict[str, dict[str, float]] = {name: {} for name in names}

    async def lane(number: int) -> None:
        env = await engine.create(f"lane-{number}")
        while todo:
            name, way = todo.pop()
            script = told[name][way]
            answer = await script.perform(env, webarena.sites_of(env).for_agent)
            found[name][way] = await judges.evaluate(env, tasks[name], answer)
            if writes(script):
                await env.reset()

    async with evaluators(at_once=2 * LANES) as judges, anyio.create_task_group() as lanes:
        for number in range(min(LANES, len(names))):
            lanes.start_soon(lane, number)
    return found


def expected(names: list[str]) -> dict[str, dict[str, float]]:
    """Who does what is asked scores 1, who does not 0."""
    return {name: {"right": 1.0, "wrong": 0.0} for name in names}
