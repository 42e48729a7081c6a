"""OpenEnv's protocol, driven by the client of openenv-core, and by clients that use it badly."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from openapi_spec_validator import validate
from wsproto.events import AcceptConnection, Event, RejectConnection

from statefork.adapters.interfaces.environment import Evaluation
from statefork.adapters.interfaces.http import serving
from statefork.adapters.interfaces.http.asking import BODY_BYTES_MAX
from statefork.adapters.interfaces.http.serving import place_of, served
from statefork.adapters.interfaces.openenv import app as openenv
from statefork.adapters.interfaces.openenv.app import OpenEnv
from statefork.adapters.interfaces.openenv.beginning import TEMPLATE
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.engine.errors import TransitionAborted, UnknownEnvironment, UnknownRef
from statefork.journal.events import ActionBegun, ActionEnded
from statefork.replay.auditing import audit
from tests.integration import http_kit
from tests.integration.http_kit import PATIENCE_S, PUT, WAIT, until
from tests.integration.openenv_kit import Talker, talking
from tests.integration.venv_kit import venv_of

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "venvs" / "openenv.txt"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """It is served on trio."""
    return "trio"


class Served(NamedTuple):
    """Episodes that are served."""

    engine: Engine
    url: str

    def alive(self) -> list[str]:
        """The environments that there are."""
        return [env.name for env in self.engine.environments()]


@asynccontextmanager
async def serve(folder: Path, **options: Any) -> AsyncIterator[Served]:
    """An engine and its episodes."""
    (folder / "notes.toml").write_text(http_kit.CONTRACT)
    async with open_engine(folder / "notes.toml", state=folder / "state") as engine:
        async with served(OpenEnv(engine, **options), place_of("0")) as address:
            yield Served(engine, address.url)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One for the module, with room for two clients."""
    folder = tmp_path_factory.mktemp("openenv")
    async with serve(folder, sessions=2) as running:
        yield running
    assert audit(folder / "state").clean


async def run(served_at: Served, script: Path) -> str:
    """What a script of openenv-core's printed."""
    python = await anyio.to_thread.run_sync(venv_of, REQUIREMENTS)
    command = [str(python), str(script), served_at.url]
    done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


async def test_the_example_runs_with_its_own_client(running: Served) -> None:
    said = await run(running, ROOT / "examples" / "openenv_client.py")
    assert said.splitlines() == [
        "begins with: {'greeting': 'hello'}",
        "basket: tea - done: False",
        "Server error: there is no action 'dance'. There are: put, get, delete, add, fail, wait, leave "
        "(code: VALIDATION_ERROR)",
        "steps: 2",
        "again: {'greeting': 'hello'}",
    ]
    with anyio.fail_after(PATIENCE_S):
        while running.alive() != [TEMPLATE]:  # its episodes are over when it is gone
            await anyio.lowlevel.checkpoint()


async def test_openenvs_own_validation_of_servers_passes(running: Served, tmp_path: Path) -> None:
    (tmp_path / "validate.py").write_text(
        "import json, sys\n"
        "from openenv.cli._validation import validate_running_environment\n"
        "print(json.dumps(validate_running_environment(sys.argv[1])))\n"
    )
    report = json.loads(await run(running, tmp_path / "validate.py"))
    assert report["passed"], report
    assert report["mode"] == "production"  # /reset and /step are not offered
    async with httpx.AsyncClient(base_url=running.url) as http:
        validate((await http.get("/openapi.json")).json())
        assert (await http.post("/mcp", content=b"{")).json()["error"]["code"] == -32700
        too_long = await http.post("/mcp", content=b" " * (BODY_BYTES_MAX + 1))
        assert (too_long.status_code, too_long.json()["code"]) == (413, "body_too_large")


async def test_two_clients_change_nothing_of_each_other(running: Served) -> None:
    """The same unique key in both, one after the other and in the other order; a third client is told to wait."""

    def both() -> None:
        with talking(running.url) as one, talking(running.url) as two:
            for first, second in ((one, two), (two, one)):
                assert first.say({"type": "reset"})["data"]["observation"]["value"] == {"greeting": "hello"}
                assert second.say({"type": "reset"})["data"]["observation"]["value"] == {"greeting": "hello"}
                first.say({"type": "step", "data": {**PUT, "value": "first"}})
                second.say({"type": "step", "data": {**PUT, "value": "second"}})
                got = first.say({"type": "step", "data": {"type": "get", "key": "basket"}})
                assert got["data"]["observation"]["value"] == "first"
            with talking(running.url) as three:
                told = three.say({"type": "reset"})["data"]  # however late it asks
                assert (told["code"], told["active_sessions"], told["max_sessions"]) == ("CAPACITY_REACHED", 2, 2)
                assert three.hear() == {"closed": 1000}

    await anyio.to_thread.run_sync(both)


async def test_who_is_turned_away_and_says_nothing_is_told_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def third(url: str) -> Any:
        with talking(url) as one:
            one.say({"type": "state"})
            with talking(url) as silent:
                return [silent.hear()["data"]["code"], silent.hear()]

    async with serve(tmp_path, sessions=1) as running:
        for name, value in (("TURNED_AWAY_MAX", 0), ("FIRST_WORD_S", 0.1)):
            with monkeypatch.context() as patch:
                patch.setattr(openenv, name, value)
                found = await anyio.to_thread.run_sync(third, running.url)
                assert found == ["CAPACITY_REACHED", {"closed": 1000}]


async def test_what_is_said_badly_is_told_and_ends_nothing(running: Served) -> None:
    def bad() -> None:
        with talking(running.url) as agent:
            assert agent.say({"type": "step", "data": PUT})["data"]["code"] == "EXECUTION_ERROR"
            agent.say({"type": "reset", "data": {"seed": 7, "episode_id": "mine"}})
            for said, code in (
                ("{", "INVALID_JSON"),
                ("[]", "VALIDATION_ERROR"),
                ({"kind": "reset"}, "VALIDATION_ERROR"),
                ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR"),
                ({"type": "fork", "data": {"n": 2}}, "UNKNOWN_TYPE"),
                ({"type": "step", "data": {"type": "dance"}}, "VALIDATION_ERROR"),
                ({"type": "step", "data": {"type": "fail", "key": "x"}}, "EXECUTION_ERROR"),
            ):
                told = agent.say(said)
                assert (told["type"], told["data"]["code"]) == ("error", code), said
            rpc = agent.say({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}})
            assert (rpc["type"], rpc["data"]["id"], rpc["data"]["error"]["code"]) == ("mcp", 7, -32601)
            assert agent.say({"type": "step", "data": {**PUT, "metadata": {}}})["data"]["done"] is False
            assert agent.say({"type": "state"})["data"] == {"episode_id": "mine", "step_count": 1}
            assert agent.say({"type": "close"}) == {"closed": 1000}
        with talking(running.url) as agent:
            agent.say({"type": "reset"})
            agent.send("x" * (serving.MESSAGE_BYTES_MAX + 1))
            assert agent.hear() == {"closed": 1009}

    await anyio.to_thread.run_sync(bad)


async def test_agents_reach_no_verb_of_an_operator(running: Served) -> None:
    async with httpx.AsyncClient(base_url=running.url) as http:
        assert (await http.get("/health")).json() == {"status": "healthy"}
        assert (await http.get("/metadata")).json()["name"] == "notes"
        assert (await http.get("/schema")).json()["action"]["required"] == ["type"]
        for path in ("/reset", "/step", "/v1/forks", "/v1/environments", f"/sandboxes/{TEMPLATE}/fork", "/events"):
            for method in ("GET", "POST"):
                answer = await http.request(method, path, json={})
                assert (answer.status_code, answer.json()["code"]) == (404, "usage")
        assert (await http.get("/health", headers={"Host": "evil.example"})).status_code == 421
        assert (await http.get("/health", headers={"Origin": "http://evil.example"})).status_code == 403

    def foreign() -> list[type[Event]]:
        found = []
        for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
            with talking(running.url, **headers) as talker:
                found.append(type(talker.begun))
        with talking(running.url) as talker:
            return [*found, type(talker.begun)]

    assert await anyio.to_thread.run_sync(foreign) == [RejectConnection, RejectConnection, AcceptConnection]


async def test_who_leaves_in_mid_step_leaves_a_whole_history(running: Served) -> None:
    behind = await running.engine.journal.flush()

    def leave() -> None:
        agent = Talker(running.url)
        agent.say({"type": "reset"})
        agent.send({"type": "step", "data": WAIT})
        leaving.append(agent)

    leaving: list[Talker] = []
    with anyio.fail_after(PATIENCE_S):
        await anyio.to_thread.run_sync(leave)
        begun = await until(running.engine, ActionBegun, behind)
        leaving[0].socket.close()
        await anyio.wait_all_tasks_blocked()
        http_kit.Running(running.engine, running.url).world.signal("bell")
        ended = await until(running.engine, ActionEnded, begun.position)
        assert getattr(ended.event, "outcome", "") == "ok"
        while running.alive() != [TEMPLATE]:
            await anyio.lowlevel.checkpoint()


async def test_who_says_nothing_gives_the_place_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "IDLE_S", 0.3)

    def silent() -> list[Any]:
        with talking(running.url) as agent:
            first = agent.say({"type": "reset"})["type"]
            return [first, agent.hear()["data"]["code"], agent.hear()]

    async with serve(tmp_path, sessions=1) as running:
        assert await anyio.to_thread.run_sync(silent) == ["observation", "SESSION_ERROR", {"closed": 1000}]
        with anyio.fail_after(PATIENCE_S):
            while running.alive() != [TEMPLATE]:
                await anyio.lowlevel.checkpoint()
        assert (await anyio.to_thread.run_sync(silent))[0] == "observation"


async def test_episodes_begin_with_any_moment_and_are_judged(tmp_path: Path) -> None:
    async def judge(seen: Evaluation) -> tuple[float, bool]:
        value = (await seen.look()).value
        bought = isinstance(value, dict) and value.get("basket") == "tea"
        return float(bought), bought

    def play() -> list[Any]:
        with talking(running.url) as agent:
            agent.say({"type": "reset"})
            steps = [agent.say({"type": "step", "data": {**PUT, "value": value}})["data"] for value in ("milk", "tea")]
            over = agent.say({"type": "step", "data": PUT})
            return [*((one["reward"], one["done"]) for one in steps), over["data"]["code"]]

    async with serve(tmp_path, begin="a#1", judge=judge) as running:
        env = await running.engine.create("a")
        await env.act({**PUT, "key": "greeting", "value": "bye"})
        assert await anyio.to_thread.run_sync(play) == [(0.0, False), (1.0, True), "EXECUTION_ERROR"]
    async with serve(tmp_path, begin="nobody@7") as running:

        def refused() -> str:
            with talking(running.url) as agent:
                return str(agent.hear()["data"]["code"])

        assert await anyio.to_thread.run_sync(refused) == "FACTORY_ERROR"


async def test_episodes_begin_also_in_the_next_engine_of_a_world_that_keeps_nothing(tmp_path: Path) -> None:
    """What a store in memory held ends with its engine: the origin of the engine before can't be forked any more."""

    def play() -> str:
        with talking(running.url) as agent:
            values = [agent.say({"type": "reset"})["data"]["observation"]["value"] for _ in range(2)]
            assert values == [{"greeting": "hello"}] * 2
        return running.alive()[0]

    found = []
    for _ in range(3):
        async with serve(tmp_path) as running:
            found.append(await anyio.to_thread.run_sync(play))
    assert found == [TEMPLATE, f"{TEMPLATE}-2", f"{TEMPLATE}-3"]
    assert audit(tmp_path / "state").clean


async def test_what_somebody_used_stays_and_a_retired_name_is_passed_over(tmp_path: Path) -> None:
    def play() -> str:
        with talking(running.url) as agent:
            return str(agent.say({"type": "reset"})["type"])

    async with serve(tmp_path) as running:
        await (await running.engine.create(TEMPLATE)).act(PUT)
        assert await anyio.to_thread.run_sync(play) == "observation"
    async with serve(tmp_path) as running:
        assert await anyio.to_thread.run_sync(play) == "observation"
        assert running.alive()[:2] == [TEMPLATE, f"{TEMPLATE}-2"]
        for name in (TEMPLATE, f"{TEMPLATE}-2"):
            await running.engine.environment(name).retire()
        assert await anyio.to_thread.run_sync(play) == "observation"
        assert f"{TEMPLATE}-3" in running.alive()


async def test_a_moment_that_no_episode_can_begin_with_is_told_before_the_first(tmp_path: Path) -> None:
    async with serve(tmp_path) as running:
        await running.engine.create("a")
        await OpenEnv(running.engine, begin="a@1").try_out()
        assert running.alive() == ["a"]
        with pytest.raises(UnknownEnvironment):
            await OpenEnv(running.engine, begin="nosuch@1").try_out()
        with pytest.raises(UnknownRef):
            await OpenEnv(running.engine, begin="a@7").try_out()
    async with serve(tmp_path) as running:
        with pytest.raises(TransitionAborted, match="no version"):
            await OpenEnv(running.engine, begin="a@1").try_out()
        assert running.alive() == ["a"]
