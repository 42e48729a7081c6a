"""What is complained of in such systems, told through HTTP, OpenEnv and MCP, on one engine of the shop."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ImageContent

from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.http.app import Api
from statefork.adapters.interfaces.http.client import AsyncClient
from statefork.adapters.interfaces.http.serving import place_of, served
from statefork.adapters.interfaces.openenv.app import OpenEnv
from statefork.adapters.interfaces.openenv.beginning import TEMPLATE
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.browser.options import routes_of
from statefork.engine.errors import EnvironmentRetired
from statefork.engine.ports import Needs
from statefork.journal.errors import StateforkError
from statefork.journal.events import ActionEnded, RequestRefused
from tests.integration.http_kit import TOKEN
from tests.integration.openenv_kit import Talker
from tests.integration.shop_kit import events

pytestmark = [pytest.mark.anyio, pytest.mark.shop, pytest.mark.browser]

SHOP = "http://shop.example"
CATALOGUE, BASKET = {"type": "goto", "url": f"{SHOP}/catalogue/"}, {"type": "goto", "url": f"{SHOP}/basket/"}
ADD = {"type": "click", "role": "button", "name": "Add to basket", "nth": 0}
HANG = {"type": "wait", "selector": "#never", "timeout_ms": 600_000}
HUNG_S = 2.0  # how long what hangs may; where each action has the same deadline, it is ANY_S
ANY_S = 8.0
_numbers = count(1)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What serves is trio."""
    return "trio"


class Doors(NamedTuple):
    """One engine, and where it is reached."""

    engine: Engine
    http: str
    openenv: str

    def operator(self) -> AsyncClient:
        """One who has the token."""
        return AsyncClient(self.http, token=TOKEN)

    async def pieces(self, env: str) -> float:
        """How many pieces lie in an environment's basket."""

        async def look(seen: Any) -> float:
            (row,) = seen.query("db", "SELECT coalesce(sum(quantity), 0) AS pieces FROM basket_line")
            return float(row["pieces"])

        return await self.engine.environment(env).evaluate(look)


@pytest.fixture(scope="module")
async def doors(one_shop: Engine) -> AsyncIterator[Doors]:
    """All of them at once."""
    api = Api(one_shop, token=TOKEN)
    agents = OpenEnv(one_shop, sessions=4, act_timeout_s=ANY_S)
    async with serve_control(one_shop), anyio.create_task_group() as tasks:
        tasks.start_soon(api.run)
        async with served(api, place_of("0")) as http, served(agents, place_of("0")) as openenv:
            yield Doors(one_shop, http.url, openenv.url)
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
async def nothing_left(doors: Doors) -> AsyncIterator[None]:
    """What a test made is retired after it."""
    yield
    for env in doors.engine.environments():
        if env.name != TEMPLATE:
            with suppress(EnvironmentRetired):  # an episode that ends by itself in this moment
                await env.retire()


class Agent(NamedTuple):
    """Who acts in one environment. ``act`` gives the error's code, empty where it went well, and what is seen."""

    env: str
    act: Callable[[dict[str, Any]], Awaitable[tuple[str, str]]]


def deadline_of(action: dict[str, Any]) -> float | None:
    """How long an action may take, where that can be said of each."""
    return HUNG_S if action is HANG else None


Face = Callable[[Doors], AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def over_http(doors: Doors) -> AsyncIterator[Agent]:
    """An agent whose harness speaks HTTP."""
    name = f"h-{next(_numbers)}"
    async with doors.operator() as engine:
        await engine.create(name)

        async def act(action: dict[str, Any]) -> tuple[str, str]:
            try:
                return "", (await engine.act(name, action, timeout_s=deadline_of(action)))["text"]
            except StateforkError as error:
                return error.code, str(error)

        yield Agent(name, act)
        await engine.retire(name)


_resetting = anyio.Lock()


@asynccontextmanager
async def over_openenv(doors: Doors) -> AsyncIterator[Agent]:
    """An agent that speaks OpenEnv."""
    talker = await anyio.to_thread.run_sync(Talker, doors.openenv)
    with talker.socket:
        async with _resetting:  # so that it is known whose the new environment is
            before = {TEMPLATE, *doors.engine.capsules}
            await anyio.to_thread.run_sync(talker.say, {"type": "reset"})
            (name,) = set(doors.engine.capsules) - before

        async def act(action: dict[str, Any]) -> tuple[str, str]:
            told = (await anyio.to_thread.run_sync(talker.say, {"type": "step", "data": action}))["data"]
            return ("", told["observation"]["text"]) if "observation" in told else (told["statefork"], told["message"])

        yield Agent(name, act)


@asynccontextmanager
async def over_mcp(doors: Doors) -> AsyncIterator[Agent]:
    """An agent that speaks MCP."""
    name = f"m-{next(_numbers)}"
    await doors.engine.create(name)
    args = ["-m", "statefork", "mcp", "agent", name, "--state", str(doors.engine.state)]
    async with Client(StdioServerParameters(command=sys.executable, args=args)) as client:

        async def act(action: dict[str, Any]) -> tuple[str, str]:
            told = await client.call_tool("act", {"action": action, "timeout_s": deadline_of(action)})
            code = (told.structured_content or {}).get("code", "") if told.is_error else ""
            return code, getattr(told.content[0], "text", "")

        yield Agent(name, act)


each_face = pytest.mark.parametrize("face", [over_http, over_openenv, over_mcp])


async def done(agent: Agent, *actions: dict[str, Any]) -> str:
    """What is seen in the end, when all went well."""
    seen = ""
    for action in actions:
        code, seen = await agent.act(action)
        assert not code, (action, seen)
    return seen


@each_face
async def test_case_2_tasks_in_any_order_and_in_parallel(doors: Doors, face: Face) -> None:
    """The same answers one after the other, and at once in the other order."""

    async def answer(times: int, into: dict[int, tuple[float, bool]]) -> None:
        async with face(doors) as agent:
            page = await done(agent, *[CATALOGUE, ADD] * times, BASKET)
            into[times] = (await doors.pieces(agent.env), "Your basket is empty" in page)

    in_order: dict[int, tuple[float, bool]] = {}
    at_once: dict[int, tuple[float, bool]] = {}
    for times in (0, 1):
        await answer(times, in_order)
    async with anyio.create_task_group() as tasks:
        for times in (1, 0):
            tasks.start_soon(answer, times, at_once)
    assert in_order == at_once == {0: (0.0, True), 1: (1.0, False)}


@each_face
async def test_case_7_a_hung_action(doors: Doors, face: Face) -> None:
    """Its deadline ends it, a sibling goes on meanwhile, and it is recorded as unknown."""
    codes: list[str] = []
    async with face(doors) as agent, face(doors) as sibling:
        await done(agent, CATALOGUE)

        async def hang() -> None:
            codes.append((await agent.act(HANG))[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await done(sibling, CATALOGUE, ADD)
            assert await doors.pieces(sibling.env) == 1.0
        assert codes == ["action_timeout"]
        outcomes = [getattr(one, "outcome", "") for one in await events(doors.engine, agent.env, ActionEnded)]
        assert outcomes == ["ok", "unknown"]
        await done(agent, CATALOGUE)


async def test_case_12_a_fork_is_reachable(doors: Doors) -> None:
    """When the answer comes, the children's sites do: of a fork, of a sandbox's fork, and of an operator's by MCP."""
    args = ["-m", "statefork", "mcp", "operator", "--state", str(doors.engine.state)]
    async with over_http(doors) as agent, doors.operator() as engine:
        await done(agent, CATALOGUE, ADD)
        (forked,) = (await engine.fork(agent.env))["children"]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            answer = await http.post(f"{doors.http}/sandboxes/{agent.env}/fork", json={"count": 1})
            sandbox = answer.json()[0]["sandbox"]["metadata"]
            async with Client(StdioServerParameters(command=sys.executable, args=args)) as operator:
                told = (await operator.call_tool("fork", {"ref": agent.env})).structured_content or {}
            for child in (forked, sandbox, told["children"][0]):
                answer = await http.get(child["sites"]["shop.example"], follow_redirects=True)
                assert answer.status_code == 200
                assert await doors.pieces(child["env"]) == 1.0


async def test_case_21_truncate_at_step_k_and_go_on(doors: Doors) -> None:
    """One call: back to after step k; then another action, and on."""
    async with over_http(doors) as agent, doors.operator() as engine:
        await done(agent, CATALOGUE, ADD, CATALOGUE, ADD)
        assert await doors.pieces(agent.env) == 2.0
        told = await engine.restore(agent.env, f"{agent.env}#2")
        assert told["made"] is None or told["made"]["exact"]
        assert await doors.pieces(agent.env) == 1.0
        page = await done(agent, BASKET)
        assert "Your basket is empty" not in page
        assert (await engine.describe(agent.env))["actions"] == 3
        (child,) = (await engine.fork(f"{agent.env}#2", names=[f"{agent.env}-other"]))["children"]
        assert await doors.pieces(child["env"]) == 1.0


@pytest.mark.parametrize("face", [over_http, over_openenv])
async def test_case_24_what_comes_late(doors: Doors, face: Face) -> None:
    """What attempt N sends after its end is refused, as the journal says, and attempt N+1 has nothing of it."""
    async with face(doors) as agent:
        await done(agent, CATALOGUE)
        bindings = doors.engine.environment(agent.env).bindings
        gateway = doors.engine.kernel.resources["browser"]._services.gateway  # type: ignore[attr-defined]  # a browser's
        door = await gateway.open_proxy(bindings["shop"].identity, routes_of(Needs(bindings=bindings)))
        proxy = f"http://127.0.0.1:{door.port}"
        async with httpx.AsyncClient(proxy=proxy, trust_env=False, timeout=30) as beacon:
            assert (await beacon.get(f"{SHOP}/catalogue/")).status_code == 200
            if face is over_http:
                async with doors.operator() as engine:
                    await engine.reset(agent.env)
            else:
                await doors.engine.environment(agent.env).reset()  # as its operator may, while the episode lasts
            late = await beacon.post(f"{SHOP}/basket/add/1/", content=b"quantity=1")
        assert (late.status_code, late.json()["code"]) == (409, "stale_generation")
        refused = await events(doors.engine, agent.env, RequestRefused)
        assert [(getattr(one, "method", ""), getattr(one, "code", "")) for one in refused][-1] == (
            *("POST", "stale_generation"),
        )
        assert await doors.pieces(agent.env) == 0.0
        assert "Your basket is empty" in await done(agent, BASKET)
        await door.close()


async def test_pictures_are_sent_in_each_form(doors: Doors) -> None:
    png = b"\x89PNG\r\n"
    args = ["-m", "statefork", "mcp", "agent", "pictured", "--state", str(doors.engine.state)]
    async with doors.operator() as engine:
        await engine.create("pictured")
        seen = await engine.act("pictured", CATALOGUE)
        assert (await engine.blob(seen["screenshot"])).startswith(png)
        async with Client(StdioServerParameters(command=sys.executable, args=args)) as client:
            told = await client.call_tool("observe", {"screenshot": True})
            (picture,) = (part for part in told.content if isinstance(part, ImageContent))
            assert b64decode(picture.data).startswith(png)

    def look() -> str:
        talker = Talker(doors.openenv)
        with talker.socket:
            talker.say({"type": "reset", "data": {"screenshots": True}})
            return str(talker.say({"type": "step", "data": CATALOGUE})["data"]["observation"]["screenshot"])

    assert b64decode(await anyio.to_thread.run_sync(look)).startswith(png)
