"""Evaluators that hang, die, raise or ask a model, and evaluations beside resets and writes: over the office."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from statefork.actions import Click, Fill, Goto
from statefork.adapters.interfaces import webarena
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.engine.errors import MissingDependency
from statefork.journal.events import EvaluationRecorded
from statefork.replay.auditing import audit
from statefork.worlds.office.scripted import scripts
from tests.integration.venv_kit import venv_of
from tests.integration.webarena_kit import REQUIREMENTS, evaluators, needs_sites

pytestmark = needs_sites

BOWL = "http://shop.example/catalogue/skerry-bowl-ink_3/"


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def made(folder: Path, **judged: Any) -> webarena.Task:
    """A task of one's own."""
    file = folder / "task.json"
    config = {"task_id": "own", "sites": ["shopping"], "intent": "?", "start_url": "__SHOPPING__", "eval": judged}
    file.write_text(json.dumps(config))
    return webarena.load_tasks(file)["own"]


def program(folder: Path, locator: str) -> webarena.Task:
    """A task that is judged by what an expression gives."""
    target = {"url": "last", "locator": f"func:{locator}", "required_contents": {"exact_match": "yes"}}
    return made(folder, eval_types=["program_html"], program_html=[target])


def offspring(places: list[str]) -> list[str]:
    """What has been started for evaluators, by them and for them: they have a folder in one of these places."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), process.environ().get("TMPDIR", "")]
            if any(one.startswith(place) for place in places for one in told):
                found.append(process.name())
        except psutil.Error:
            continue
    return found


async def test_evaluators_read_what_the_agent_acted_on_while_others_reset_and_write(tmp_path: Path) -> None:
    tasks, told = webarena.packaged(), scripts()
    async with open_engine("office", state=tmp_path / "state") as engine, evaluators() as judges:
        judged, reset, writing = await engine.create_many(["judged", "reset", "writing"])
        for env in (judged, reset, writing):
            await told["6"]["right"].perform(env, webarena.sites_of(env).for_agent)
        before, seen = judged.ref, await judged.observe()
        found: dict[str, float] = {}

        async def judge(env: Environment) -> None:
            found[env.name] = await judges.evaluate(env, tasks["6"])

        async with anyio.create_task_group() as together:
            together.start_soon(judge, judged)
            together.start_soon(reset.reset)
            together.start_soon(told["6"]["right"].perform, writing, webarena.sites_of(writing).for_agent)
        assert found == {"judged": 1.0}
        assert judged.ref == before
        after = await judged.observe()
        assert (after.url, after.digest) == (seen.url, seen.digest), "the agent's page was not moved"
        (recorded,) = await evaluations(engine)
        assert (recorded.env, recorded.score, recorded.generation) == ("judged", 1.0, before.generation)
        assert isinstance(recorded.detail, dict)
        assert (recorded.detail["task"], recorded.detail["answer"]) == ("6", "")
        assert set(recorded.detail["written"]) <= {"shop-db"}  # type: ignore[arg-type]  # a list of names
        await continue_otherwise(engine, judges, {reset: 0.0, writing: 0.0}, bowls(tmp_path))
    assert audit(tmp_path / "state").clean


def bowls(folder: Path) -> webarena.Task:
    """Two bowls are in the basket."""
    quantity = "document.querySelector('#id_form-0-quantity').value"
    target = {"url": "__SHOPPING__/basket/", "locator": quantity, "required_contents": {"exact_match": "2"}}
    return made(folder, eval_types=["program_html"], program_html=[target])


async def continue_otherwise(
    engine: Engine, judges: webarena.Evaluators, wanted: dict[Environment, float], task: webarena.Task
) -> None:
    """A past is cut after a step and goes on otherwise: one call, and what comes of it is judged at once."""
    (other,) = await engine.fork("judged#2")  # one bowl is in the basket, of two
    await other.act(Goto(BOWL))
    await other.act(Click("#add_to_basket_form button[type=submit]"))
    found: dict[str, float] = {}

    async def judge(env: Environment) -> None:
        found[env.name] = await judges.evaluate(env, task)

    async with anyio.create_task_group() as together:
        for env in (*wanted, other):
            together.start_soon(judge, env)
    assert found == {**{env.name: score for env, score in wanted.items()}, other.name: 1.0}, "one has none, one four"


async def evaluations(engine: Engine) -> list[EvaluationRecorded]:
    return [one.event async for one in engine.journal.read() if isinstance(one.event, EvaluationRecorded)]


async def test_what_evaluators_do_wrong_is_told_and_the_environment_goes_on(tmp_path: Path) -> None:
    async with open_engine("office", state=tmp_path / "state") as engine:
        env = await engine.create("one")
        await env.act(Goto(BOWL))
        async with evaluators() as judges:
            with pytest.raises(webarena.EvaluatorTimeout, match=r"task own did not answer within 5 s, and was killed"):
                await judges.evaluate(env, program(tmp_path, "time.sleep(3600)"), deadline_s=5.0)
            places = [str(workers.place) for workers in judges.workers]
            assert [name for name in offspring(places) if "python" not in name] == [], "its browser has ended, too"
            with pytest.raises(webarena.EvaluatorFailed, match="died without an answer"):
                await judges.evaluate(env, program(tmp_path, "importlib.import_module('os')._exit(3)"))
            with pytest.raises(webarena.EvaluatorFailed, match="raised ZeroDivisionError: division by zero") as failed:
                await judges.evaluate(env, program(tmp_path, "print('what it said') or 1 / 0"))
            assert failed.value.said.endswith("what it said\n")
            with pytest.raises(webarena.EvaluatorFailed, match="JSONDecodeError") as failed:
                await judges.evaluate(env, program(tmp_path, "shopping_get_latest_order_url()"))
            assert "shopping_get_auth_token" in failed.value.traceback, (
                "the shop is no Magento: whole, as it was raised"
            )
            await refused(env, judges, tmp_path)
            await env.act(Fill(role="textbox", name="Search", value="lamp"))
            typed = "document.querySelector('input[name=q]').value"
            target = {"url": "last", "locator": typed, "required_contents": {"exact_match": "lamp"}}
            seen = made(tmp_path, eval_types=["program_html"], program_html=[target])
            assert await judges.evaluate(env, seen) == 1.0, "what stands in a form is seen as the agent's page has it"
        assert offspring(places) == []
        await env.reset()
    assert audit(tmp_path / "state").clean


async def refused(env: Environment, judges: webarena.Evaluators, folder: Path) -> None:
    """Before anything runs: who asks a model, who asks for a site that there is not, and who has no package."""
    answers = {"fuzzy_match": ["a bowl"]}
    asking = made(folder, eval_types=["string_match"], reference_answers=answers)
    with pytest.raises(webarena.EvaluatorNeedsModel, match=r"task own is judged by a model \(fuzzy_match\)"):
        await judges.evaluate(env, asking, "a bowl")
    with pytest.raises(webarena.SiteMissing, match="task own: nothing in this world stands for MAP"):
        await judges.evaluate(env, made(folder, eval_types=["url_match"], reference_url="__MAP__/way"))
    with pytest.raises(MissingDependency, match="No module named 'webarena'"):
        await webarena.evaluate(
            env, made(folder, eval_types=["url_match"], reference_url="__SHOPPING__"), python=sys.executable
        )
    async with model("correct") as url:
        given = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": url}
        assert await webarena.evaluate(env, asking, "a bowl", python=venv_of(REQUIREMENTS), model=given) == 1.0


@asynccontextmanager
async def model(says: str) -> AsyncIterator[str]:
    """A server that speaks as OpenAI's does, and always says the same."""
    message = {"role": "assistant", "content": says}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "any", "choices": [choice]})
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive()
            await stream.send((head + body).encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()


RESETTING = """
import importlib.util, sys
spec = importlib.util.find_spec("browsergym").submodule_search_locations[0] + "/webarena/instance.py"
found = importlib.util.spec_from_file_location("instance", spec)
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
instance = module.WebArenaInstance()
instance.check_status()
instance.full_reset(skip_if_not_set=False)
print(instance.urls["shopping"])
"""


async def test_browsergyms_instance_finds_the_sites_and_resets_them(tmp_path: Path) -> None:
    declared = webarena.read_sites() | {"MAP": "wiki.example", "HOMEPAGE": "shop.example"}
    async with open_engine("office", state=tmp_path / "state") as engine:
        env, other = await engine.create_many(["one", "other"])
        sites = webarena.sites_of(env, declared)
        for one in (env, other):
            await scripts()["6"]["right"].perform(one, webarena.sites_of(one).for_agent)
        async with webarena.reset_server(env.reset) as url:
            variables = {**sites.variables(), "WA_FULL_RESET": url, "OPENAI_API_KEY": "none"}
            told = await anyio.run_process([str(venv_of(REQUIREMENTS)), "-c", RESETTING], env=variables)
        assert told.stdout.decode().strip() == env.base_url("shop")
        assert (env.ref.generation, other.ref.generation) == (2, 1)
        for one, lines in ((env, 0), (other, 1)):
            assert len(await basket(one)) == lines


async def basket(env: Environment) -> list[Any]:
    found: list[Any] = []

    async def read(evaluation: Any) -> float:
        found.extend(evaluation.query("shop-db", "SELECT * FROM basket_line"))
        return 1.0

    await env.evaluate(read)
    return found
