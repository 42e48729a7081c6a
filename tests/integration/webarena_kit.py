"""The office's tasks for tests: acted by its scripts, and judged by the real evaluators in a virtual environment."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from statefork.adapters.interfaces import webarena
from statefork.adapters.interfaces.python import Engine
from statefork.worlds.office.scripted import Script, Way, scripts
from tests.integration.postgres_kit import needs_postgres
from tests.integration.shop_kit import needs_shop
from tests.integration.stack_kit import Tracker, Wiki, missing
from tests.integration.venv_kit import venv_of

REQUIREMENTS = Path(__file__).parent / "venvs/webarena.txt"
LACKING = missing(Tracker()) or missing(Wiki())

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


Ways = list[tuple[str, Way]]
"""Tasks, and which of their scripts."""


async def scores(
    engine: Engine, judges: webarena.Evaluators, ways: Ways, *, lanes: int, seed: int
) -> dict[tuple[str, Way], float]:
    """What scripts score, in an order by chance and several at once.

    An environment takes the next one when it has done one; it is reset where something was left behind.
    """
    tasks, told = webarena.packaged(), scripts()
    todo = Random(seed).sample(ways, len(ways))
    found: dict[tuple[str, Way], float] = {}

    async def lane(number: int) -> None:
        env = await engine.create(f"lane-{number}")
        while todo:
            name, way = todo.pop()
            script = told[name][way]
            answer = await script.perform(env, webarena.sites_of(env).for_agent)
            found[name, way] = await judges.evaluate(env, tasks[name], answer)
            if todo and writes(script):
                await env.reset()

    async with anyio.create_task_group() as running:
        for number in range(lanes):
            running.start_soon(lane, number)
    return found


def expected(ways: Ways) -> dict[tuple[str, Way], float]:
    """Who does what is asked scores 1, who does not 0."""
    return {(name, way): float(way == "right") for name, way in ways}
